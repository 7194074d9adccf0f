"""Training on two gloo ranks: same weights, loss and metrics as on one rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from engine.config.learning.algorithm import AlgorithmConfig
from engine.config.learning.trainer import TrainerConfig
from engine.models.attention import attend
from engine.models.loader import open_model, write_policy_files
from engine.models.published.networks import build_causal
from engine.models.published.pretrained import PretrainedModel
from engine.trainer.batch import Row
from engine.trainer.learner import UpdateResult
from engine.trainer.packing import Layout, lay_out
from engine.trainer.processes.rank import open_policy
from engine.trainer.ranks import ALONE, Ranks, SharedRow, shared_row
from engine.trainer.traces import TokenTrace
from engine.trainer.trainer import Trainer
from engine.types import Group, TerminationReason
from tests.unit.models.tiny_families import tiny_config, write_tiny
from tests.unit.trainer.builders.rank_pair import RankPair, rank_pair, ranks_of
from tests.unit.trainer.builders.rl_model import make_groups, make_model

CPU = torch.device("cpu")
REWARDS = [[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.25]]
INPUTS = {
    "all": REWARDS,
    "one trajectory with a gradient": [[1.0, 0.0]],
    "nothing to learn": [[1.0, 1.0], [0.0, 0.0]],
}
FILTERED = {(0, 1): TerminationReason.MAX_STEPS}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "grpo_pp": ({}, {}),
    "sequence ratio, KL, entropy, correction": (
        {
            "ratio": "sequence", "kl": "k3", "kl_coefficient": 0.1, "entropy_coefficient": 0.05,
            "importance_correction": "token_tis", "aggregation": "token_mean",
        },
        {"activation_checkpointing": True},
    ),
    "KL in the reward, one long row": (
        {"kl": "k2", "kl_placement": "reward", "kl_coefficient": 0.1},
        {"tokens_per_microbatch": 100_000, "minibatches": 1},
    ),
}  # fmt: skip
DATA, CONTEXT = (2, 1), (1, 2)
Updated = tuple[list[UpdateResult], dict[str, Tensor]]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPair]:
    torch.set_num_threads(1)
    with rank_pair(tmp_path_factory.mktemp("pair"), __name__) as pair:
        yield pair


class Together(Trainer):
    """Trainer that plans the whole update and trains its rank's share of it."""

    def _divergences(self, shares: Sequence[Sequence[Row]], temperature: float) -> dict[int, float]:
        gathered: list[dict[int, float]] = [super()._divergences(shares, temperature)]
        if self._ranks.mesh is not None:
            gathered *= self._ranks.size
            dist.all_gather_object(gathered, gathered[0])
        return {place: value for divergences in gathered for place, value in divergences.items()}


def groups_of(name: str) -> list[Group]:
    terminations = FILTERED if name != "all" else {}
    return make_groups(make_model(seed=1), INPUTS[name], terminations=terminations)


def updated(case: str, name: str, shape: tuple[int, int], dtype: torch.dtype, **more: Any) -> Updated:
    """Run two updates on the same groups in every rank; return their results and the weights."""
    objective, settings = CASES[case]
    usual = {
        "traced_groups": 1.0,
        "minibatches": 2,
        "learning_rate": 1e-3,
        "threads": 1,
        "tokens_per_microbatch": 64,
    }
    sizes = {"data_parallel": shape[0], "context_parallel": shape[1]}
    trainer = Together(
        make_model().to(dtype),
        algorithm=AlgorithmConfig(**objective),
        config=TrainerConfig(**usual | settings | more | sizes),
        max_context=64,
        seed=5,
        reference=make_model(seed=9).to(dtype),
        ranks=ALONE if shape == (1, 1) else ranks_of(*shape),
    )
    results = [trainer.update(groups_of(name), temperature=0.8) for _ in range(2)]
    return results, {key: weight.detach().clone() for key, weight in trainer.weights()}


@pytest.mark.parametrize(
    ("shape", "case", "name"),
    [
        (DATA, "grpo_pp", "one trajectory with a gradient"),
        (DATA, "sequence ratio, KL, entropy, correction", "all"),
        (DATA, "KL in the reward, one long row", "all"),
        (CONTEXT, "grpo_pp", "all"),
        (CONTEXT, "sequence ratio, KL, entropy, correction", "one trajectory with a gradient"),
        (CONTEXT, "KL in the reward, one long row", "nothing to learn"),
    ],
)
def test_two_ranks_train_like_one_rank(pair: RankPair, shape: tuple[int, int], case: str, name: str) -> None:
    assert_two_ranks_are_one(pair, shape, case, name)


def assert_two_ranks_are_one(pair: RankPair, shape: tuple[int, int], case: str, name: str) -> None:
    """Compare in float64, where rounding cannot hide a wrong term.

    AdamW divides a gradient by its size plus ε, so the rounding error e of a gradient near zero moves a
    weight by rate × e / ε. With ε = 1e-8 and gradients of 1e-2 that is up to 1e-1 of a step in float32,
    depending on the order of summation; in float64 it is 1e-10 of a step.
    """
    results, weights = updated(case, name, (1, 1), torch.float64)
    start = dict(make_model().double().named_parameters())
    both = pair.run(updated, case, name, shape, torch.float64)
    for their_results, their_weights in both:
        for key, weight in weights.items():
            assert torch.equal(their_weights[key], both[0][1][key]), "ranks hold different weights"
            assert (their_weights[key] - weight).norm() <= 1e-6 * (weight - start[key]).norm(), key
        for ours, theirs in zip(results, their_results, strict=True):
            assert_equal_traces(ours.traces, theirs.traces)
            for key in ("loss/value", "grad/norm", "entropy/mean", "ratio/mean", "ratio/effective_share",
                        "mismatch/mean", "clip/high", "tokens/trained", "update/steps", "update/skipped",
                        "funnel/trained"):  # fmt: skip
                expected = pytest.approx(ours.metrics.get(key), rel=1e-6, abs=1e-8)
                assert theirs.metrics.get(key) == expected, key


def assert_equal_traces(ours: Mapping[int, TokenTrace], theirs: Mapping[int, TokenTrace]) -> None:
    assert ours.keys() == theirs.keys()
    for index, trace in ours.items():
        other = theirs[index]
        assert (other.step, other.weight) == (trace.step, trace.weight)
        for name in ("logprobs", "entropies", "old_logprobs", "reference_logprobs"):
            column, their_column = getattr(trace.record, name), getattr(other.record, name)
            assert (their_column is None) == (column is None), name
            assert column is None or their_column == pytest.approx(column, abs=1e-5), name


def trainer_of(folder: Path, shape: tuple[int, int], **settings: Any) -> Trainer:
    sizes = {"data_parallel": shape[0], "context_parallel": shape[1]}
    config = TrainerConfig(**{"minibatches": 2, "threads": 1} | settings | sizes)
    ranks = ALONE if shape == (1, 1) else ranks_of(*shape)
    policy = open_policy(str(folder), folder, CPU)
    return Trainer(policy, algorithm=AlgorithmConfig(), config=config, max_context=64, seed=5, ranks=ranks)


def one_update(trainer: Trainer) -> dict[str, Tensor]:
    trainer.update(make_groups(make_model(seed=1), REWARDS[:2]), temperature=1.0)
    return {name: weight.detach().clone() for name, weight in trainer.weights()}


def saved_between_updates(
    folder: Path, checkpoint: Path, settings: dict[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Run two updates in one of two ranks, saving the shards after the first."""
    trainer = trainer_of(folder, DATA, **settings)
    first = one_update(trainer)
    if dist.get_rank() == 0:
        checkpoint.mkdir(parents=True)
        write_policy_files(checkpoint, open_model(str(folder), home=folder, read=False), {})
    dist.barrier()
    trainer.save(checkpoint / "shards").result()
    second = one_update(trainer)
    trainer.close()
    return first, second


def assert_near(actual: dict[str, Tensor], expected: dict[str, Tensor], start: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    assert sum(float((weight - start[name]).norm()) for name, weight in expected.items()) > 1e-3
    for name, weight in expected.items():
        step = (weight - start[name]).norm()
        assert (actual[name] - weight).norm() <= 1e-6 * weight.norm() + 1e-3 * step, name


def assert_two_ranks_are_one_and_resume_in_one(
    pair: RankPair, folder: Path, checkpoint: Path, settings: dict[str, Any]
) -> None:
    both = pair.run(saved_between_updates, folder, checkpoint, settings)
    settings = {name: value for name, value in settings.items() if name != "cpu_offload"}
    alone = trainer_of(folder, (1, 1), **settings)
    start = {name: weight.detach().clone() for name, weight in alone.weights()}
    first, second = one_update(alone), one_update(alone)
    alone.close()
    for weights in both:
        assert_near(weights[0], first, start)
        assert_near(weights[1], second, start)
    resumed = trainer_of(checkpoint, (1, 1), **settings)
    assert all(torch.equal(weight, both[0][0][name]) for name, weight in resumed.weights())
    resumed.restore(checkpoint / "shards")
    resumed.updates = 1
    assert_near(one_update(resumed), second, start)
    resumed.close()


IN_PROPORTION = {"epsilon": 1.0, "learning_rate": 1.0}
"""Settings for steps proportional to gradients; AdamW's usual epsilon gives tiny ones a full step."""


def test_sharded_experts_train_like_unsharded_ones_and_resume_on_one_rank(
    pair: RankPair, tmp_path: Path
) -> None:
    folder = write_tiny(tmp_path / "gpt_oss", "gpt_oss")
    assert_two_ranks_are_one_and_resume_in_one(pair, folder, tmp_path / "saved", IN_PROPORTION)


def layout() -> Layout:
    """Return the layout of four sequences, two of them with a common prefix."""
    a, b, c, d = (np.random.default_rng(n).integers(5, 300, 14 + n, np.int32) for n in range(4))
    return lay_out([a, np.concatenate([a[:9], b]), c, d], share=4)


def computed(row: SharedRow, family: str, settings: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return hidden states of this rank's tokens and gradients of a fixed function of them."""
    causal = build_causal(tiny_config(family, **settings), seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in causal.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    model = PretrainedModel(causal)
    ids = torch.from_numpy(layout().ids).long()
    weights = torch.randn(len(ids), 32, generator=torch.Generator().manual_seed(3))
    ids, weights = functional.pad(ids, (0, row.padding)), functional.pad(weights, (0, 0, 0, row.padding))
    if row.here is not None:
        ids, weights = ids[row.here], weights[row.here]
    hidden = model.packed_hidden(ids, row.segments)
    (hidden * weights).sum().backward()  # type: ignore[no-untyped-call]
    return hidden.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def computed_together(
    family: str, settings: dict[str, Any]
) -> tuple[Tensor | None, Tensor, dict[str, Tensor]]:
    row = shared_row(layout(), ranks_of(*CONTEXT), CPU)
    hidden, gradients = computed(row, family, settings)
    for gradient in gradients.values():
        dist.all_reduce(gradient)
    return row.here, hidden, gradients


@pytest.mark.parametrize(
    ("family", "settings"), [("qwen3", {}), ("gpt_oss", {"num_key_value_heads": 1})], ids=["heads", "keys"]
)
def test_two_ranks_sharing_a_row_compute_the_states_and_gradients_of_one(
    pair: RankPair, family: str, settings: dict[str, Any]
) -> None:
    assert_two_ranks_that_share_a_row_compute_what_one_does(pair, family, settings)


def assert_two_ranks_that_share_a_row_compute_what_one_does(
    pair: RankPair, family: str, settings: dict[str, Any]
) -> None:
    """Compare states and gradients; ranks exchange evenly divisible heads, else gather keys and values."""
    hidden, gradients = computed(shared_row(layout(), ALONE, CPU), family, settings)
    for here, their_hidden, their_gradients in pair.run(computed_together, family, settings):
        real = here < len(layout().ids)
        assert (their_hidden[real] - hidden[here[real]]).abs().max() <= 1e-5 * hidden.abs().max()
        assert set(their_gradients) == set(gradients)
        for name, gradient in gradients.items():
            assert (their_gradients[name] - gradient).norm() <= 1e-5 * gradient.norm(), name


SHARED = (13, 9, 17)
"""Lengths of sequences with a common prefix."""


def ids_of(lengths: tuple[int, ...]) -> list[NDArray[np.int32]]:
    """Return sequences without common tokens; those of lengths ``SHARED`` have a prefix of six in common."""
    common = np.arange(6, dtype=np.int32)
    own = [np.arange(100 * n, 100 * n + length, dtype=np.int32) + 10 for n, length in enumerate(lengths)]
    return [np.concatenate([common, ids[6:]]) for ids in own] if lengths == SHARED else own


@pytest.mark.parametrize(("lengths", "size"), [((8,), 3), ((3, 9, 1, 14), 2), ((5, 5), 4), (SHARED, 3)])
def test_attention_of_ranks_sharing_a_row_equals_that_of_the_whole_row(
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
    # Every rank already has the keys and values of the whole row.
    gathered = SimpleNamespace(size=size, gather=lambda whole: whole)
    seen: list[int] = []
    for row in rows:
        assert row.here is not None
        segments = replace(row.segments, exchange=gathered)
        attended = attend(q[row.here], k, v, segments)
        torch.testing.assert_close(attended, expected[row.here], rtol=1e-5, atol=1e-6)
        assert torch.equal(row.segments.positions, whole.positions[row.here])
        seen += row.here.tolist()
    assert sorted(seen) == list(range(width))
    assert width - len(layout.ids) < 2 * size
    assert (len(layout.ids) < sum(lengths)) == (lengths == SHARED)
