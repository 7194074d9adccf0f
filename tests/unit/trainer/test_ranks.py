"""Two gloo ranks end with the weights, loss and metrics of one."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.device_mesh import init_device_mesh
from torch.multiprocessing.spawn import spawn

from engine.config.algorithm import AlgorithmConfig
from engine.config.trainer import TrainerConfig
from engine.models.attention import attend
from engine.trainer.batch import Row
from engine.trainer.packing import lay_out
from engine.trainer.ranks import ALONE, Ranks, shared_row
from engine.trainer.trainer import Trainer
from engine.types import Group, TerminationReason
from tests.unit.trainer.rl_model import make_groups, make_model

torch.set_num_threads(1)
REWARDS = [[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.25]]
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "grpo_pp": ({}, {}),
    "one long row": ({}, {"tokens_per_microbatch": 100_000, "minibatches": 1}),
    "recomputed": ({}, {"activation_checkpointing": True}),
    "sequence ratio, KL, entropy, correction": (
        {
            "ratio": "sequence", "kl": "k3", "kl_coefficient": 0.1, "entropy_coefficient": 0.05,
            "importance_correction": "token_tis", "aggregation": "token_mean",
        },
        {},
    ),
    "KL in the reward": ({"kl": "k2", "kl_placement": "reward", "kl_coefficient": 0.1}, {}),
}  # fmt: skip
INPUTS = {
    "all": REWARDS,
    "one trajectory with a gradient": [[1.0, 0.0]],
    "nothing to learn": [[1.0, 1.0], [0.0, 0.0]],
}
BFLOAT16 = {"precision": "bf16", "epsilon": 1.0}
"""Steps in proportion to gradients: at AdamW's usual epsilon the sign of a tiny one decides a whole step."""
FILTERED = {(0, 1): TerminationReason.MAX_STEPS}


def groups_of(name: str) -> list[Group]:
    terminations = FILTERED if name != "all" else {}
    return make_groups(make_model(seed=1), INPUTS[name], terminations=terminations)


class Together(Trainer):
    """One of several trainers that all plan the same update, and take their own share of it."""

    def _divergences(self, shares: Sequence[Sequence[Row]], temperature: float) -> dict[int, float]:
        found: list[dict[int, float]] = [super()._divergences(shares, temperature)]
        if self._ranks.mesh is not None:
            found *= self._ranks.size
            dist.all_gather_object(found, found[0])
        return {place: value for own in found for place, value in own.items()}


def updated(case: str, ranks: Ranks, dtype: torch.dtype, **more: Any) -> dict[str, Any]:
    """Two updates of each input by one rank, which sees the same groups as every other."""
    objective, settings = CASES[case]
    found: dict[str, Any] = {}
    for name in INPUTS:
        trainer = Together(
            make_model().to(dtype),
            algorithm=AlgorithmConfig(**objective),
            config=TrainerConfig(
                **{"minibatches": 2, "learning_rate": 1e-3, "threads": 1, "tokens_per_microbatch": 64}
                | settings
                | more
                | {"data_parallel": ranks.data_size, "context_parallel": ranks.context_size}
            ),
            max_context=64,
            seed=5,
            reference=make_model(seed=9).to(dtype),
            ranks=ranks,
        )
        metrics = [trainer.update(groups_of(name), temperature=0.8).metrics for _ in range(2)]
        weights = {key: weight.detach().clone() for key, weight in trainer.weights()}
        found[name] = metrics, weights
    return found


def _rank(rank: int, shape: tuple[int, int], folder: str) -> None:
    torch.set_num_threads(1)
    size = math.prod(shape)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    try:
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("data", "context"))
        place = Ranks.of(mesh)
        found = {
            "float32": {case: updated(case, place, torch.float32) for case in CASES},
            "float64": {case: updated(case, place, torch.float64) for case in CASES},
            "bfloat16": {case: updated(case, place, torch.float32, **BFLOAT16) for case in CASES},
        }
        torch.save(found, Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module", params=[(2, 1), (1, 2)], ids=["data", "context"])
def both(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """What each of two ranks found, for every precision and case."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(_rank, args=(request.param, folder), nprocs=2, join=True)  # type: ignore[no-untyped-call]
        return [torch.load(Path(folder) / f"{rank}.pt") for rank in range(2)]


def assert_equal_metrics(ours: dict[str, float], theirs: dict[str, float], *, rel: float) -> None:
    for key in ("loss/value", "grad/norm", "entropy/mean", "ratio/mean"):
        assert theirs.get(key) == pytest.approx(ours.get(key), rel=rel, abs=1e-8), key
    for key in ("tokens/trained", "update/steps", "update/skipped", "funnel/trained"):
        assert theirs.get(key) == ours.get(key), key


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("case", CASES)
def test_two_ranks_are_one(both: list[dict[str, Any]], case: str, name: str) -> None:
    """In float32: weights round to 1e-7 of themselves, and AdamW magnifies a gradient's rounding in its step.

    The step is held to a tighter bound in float64, below.
    """
    metrics, weights = updated(case, ALONE, torch.float32)[name]
    start = dict(make_model().named_parameters())
    for found in both:
        their_metrics, their_weights = found["float32"][case][name]
        for key, weight in weights.items():
            moved = (weight - start[key]).norm()
            assert (their_weights[key] - weight).norm() <= 1e-6 * weight.norm() + 1e-3 * moved, key
        for ours, theirs in zip(metrics, their_metrics, strict=True):
            assert_equal_metrics(ours, theirs, rel=1e-5)
            assert theirs.get("mismatch/mean") == pytest.approx(ours.get("mismatch/mean"), rel=1e-5, abs=1e-8)
            assert theirs.get("clip/high") == ours.get("clip/high")
            share = ours.get("ratio/effective_share")
            assert theirs.get("ratio/effective_share") == pytest.approx(share, rel=1e-5)
    for key, weight in both[0]["float32"][case][name][1].items():
        assert torch.equal(weight, both[1]["float32"][case][name][1][key]), "ranks hold different weights"


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("case", CASES)
def test_two_ranks_move_the_weights_where_one_does(both: list[dict[str, Any]], case: str, name: str) -> None:
    """In float64, where rounding cannot hide a wrong term.

    AdamW divides a gradient by its size plus ε, so the rounding error e of a gradient near zero moves a
    weight by rate × e / ε. With ε = 1e-8 and gradients of 1e-2 that is up to 1e-1 of a step in float32, more
    or less with the order in which a processor adds up; in float64 it is 1e-10 of one.
    """
    metrics, weights = updated(case, ALONE, torch.float64)[name]
    start = dict(make_model().double().named_parameters())
    for found in both:
        their_metrics, their_weights = found["float64"][case][name]
        for key, weight in weights.items():
            assert weight.dtype == torch.float64
            moved = (weight - start[key]).norm()
            assert (their_weights[key] - weight).norm() <= 1e-6 * moved, key
        for ours, theirs in zip(metrics, their_metrics, strict=True):
            assert_equal_metrics(ours, theirs, rel=1e-6)


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("case", CASES)
def test_bfloat16_is_one_policy_for_any_number_of_ranks(
    both: list[dict[str, Any]], case: str, name: str
) -> None:
    """Ranks round the same values, but cut gradients into other parts: a few roundings of 2⁻⁹ each."""
    metrics, weights = updated(case, ALONE, torch.float32, **BFLOAT16)[name]
    start = {name: weight.detach() for name, weight in make_model().named_parameters()}
    for found in both:
        their_metrics, their_weights = found["bfloat16"][case][name]
        moved, apart = (
            math.hypot(*(float((weight - other[key]).norm()) for key, weight in weights.items()))
            for other in (start, their_weights)
        )
        assert apart <= 2**-6 * moved
        for ours, theirs in zip(metrics, their_metrics, strict=True):
            for key in ("grad/norm", "entropy/mean", "ratio/mean"):  # the loss is a difference of large terms
                assert theirs.get(key) == pytest.approx(ours.get(key), rel=2**-6), key
            assert theirs["update/steps"] == ours["update/steps"]


class _Gathered:
    """An exchange of ranks whose keys and values are those of the whole row already."""

    def __init__(self, size: int) -> None:
        self.size = size

    def gather(self, whole: torch.Tensor) -> torch.Tensor:
        return whole


SHARED = (13, 9, 17)
"""Lengths of sequences that have a beginning in common."""


def ids_of(lengths: tuple[int, ...]) -> list[NDArray[np.int32]]:
    """Return sequences that begin with six common tokens if they are to share, without any elsewhere."""
    common = np.arange(6, dtype=np.int32)
    own = [np.arange(100 * n, 100 * n + length, dtype=np.int32) + 10 for n, length in enumerate(lengths)]
    return [np.concatenate([common, ids[6:]]) for ids in own] if lengths == SHARED else own


@pytest.mark.parametrize("lengths", [(8,), (3, 9, 1, 14), (5, 5), (40,), SHARED])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_ranks_of_a_row_attend_to_what_the_whole_row_attends_to(
    monkeypatch: pytest.MonkeyPatch, lengths: tuple[int, ...], size: int
) -> None:
    monkeypatch.setattr(Ranks, "context_group", lambda ranks: object() if ranks.context_size > 1 else None)
    places = [Ranks(context_rank=rank, context_size=size) for rank in range(size)]
    layout = lay_out(ids_of(lengths), share=2)
    rows = [shared_row(layout, place, torch.device("cpu")) for place in places]
    width = rows[0].width
    q, k, v = torch.randn(3, width, 1, 8, generator=torch.Generator().manual_seed(1))
    assert rows[0].segments.exchange is not None
    whole = rows[0].segments.exchange.row
    expected = attend(q, k, v, whole)
    seen: list[int] = []
    for row in rows:
        assert row.here is not None
        segments = replace(row.segments, exchange=_Gathered(size))  # type: ignore[arg-type]
        found = attend(q[row.here], k, v, segments)
        torch.testing.assert_close(found, expected[row.here], rtol=1e-5, atol=1e-6)
        assert torch.equal(row.segments.positions, whole.positions[row.here])
        seen += row.here.tolist()
    assert sorted(seen) == list(range(width))
    assert width - len(layout.ids) < 2 * size
    assert (len(layout.ids) < sum(lengths)) == (lengths == SHARED)
