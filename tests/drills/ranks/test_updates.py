"""Updates of two ranks match those of one, in every precision, case, shape and family."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.models.tiny_families import CONFIGS, write_tiny
from tests.unit.trainer.builders.rank_pair import RankPair, rank_pair
from tests.unit.trainer.builders.rl_model import make_model
from tests.unit.trainer.ranks.test_ranks import (
    CASES,
    CONTEXT,
    DATA,
    IN_PROPORTION,
    INPUTS,
    assert_two_ranks_are_one,
    assert_two_ranks_are_one_and_resume_in_one,
    assert_two_ranks_that_share_a_row_compute_what_one_does,
    one_update,
    trainer_of,
    updated,
)

BFLOAT16 = {"precision": "bf16", "epsilon": 1.0}
FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    **{family: (family, {}, IN_PROPORTION) for family in CONFIGS},
    "offloaded": ("qwen3", {}, {**IN_PROPORTION, "cpu_offload": True}),
    "8 bits": (
        "qwen3",
        {"hidden_size": 64, "intermediate_size": 256, "tie_word_embeddings": True},
        {"epsilon": 1e-3, "learning_rate": 1e-3, "optimizer": "adamw_8bit"},
    ),
}
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    **{family: (family, {}) for family in CONFIGS},
    "keys are gathered": ("qwen3", {"num_key_value_heads": 1}),
    "three query heads for two ranks": ("mistral", {"num_attention_heads": 3, "num_key_value_heads": 3}),
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPair]:
    torch.set_num_threads(1)
    with rank_pair(tmp_path_factory.mktemp("pair"), __name__) as pair:
        yield pair


@pytest.mark.parametrize("shape", [DATA, CONTEXT], ids=["data", "context"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", INPUTS)
def test_two_ranks_update_like_one_rank(pair: RankPair, shape: tuple[int, int], case: str, name: str) -> None:
    assert_two_ranks_are_one(pair, shape, case, name)


@pytest.mark.parametrize("shape", [DATA, CONTEXT], ids=["data", "context"])
@pytest.mark.parametrize("case", CASES)
def test_float32_update_of_two_ranks_matches_one(pair: RankPair, shape: tuple[int, int], case: str) -> None:
    """Weights have a relative rounding of 1e-7, and AdamW magnifies the rounding of gradients."""
    _, weights = updated(case, "all", (1, 1), torch.float32)
    start = dict(make_model().named_parameters())
    for _, rank_weights in pair.run(updated, case, "all", shape, torch.float32):
        for key, weight in weights.items():
            moved = (weight - start[key]).norm()
            assert (rank_weights[key] - weight).norm() <= 1e-6 * weight.norm() + 1e-3 * moved, key


def in_bfloat16(case: str, shape: tuple[int, int]) -> Any:
    return updated(case, "all", shape, torch.float32, **BFLOAT16)


def distance(weights: Mapping[str, torch.Tensor], others: Mapping[str, torch.Tensor]) -> float:
    return math.hypot(*(float((weight - others[key]).norm()) for key, weight in weights.items()))


@pytest.mark.parametrize("shape", [DATA, CONTEXT], ids=["data", "context"])
@pytest.mark.parametrize("case", CASES)
def test_bfloat16_update_of_two_ranks_matches_one(pair: RankPair, shape: tuple[int, int], case: str) -> None:
    """Ranks split gradients into other parts, and so round otherwise: not worse than bfloat16 itself does."""
    results, weights = in_bfloat16(case, (1, 1))
    _, exact = updated(case, "all", (1, 1), torch.float32, epsilon=BFLOAT16["epsilon"])
    rounding = distance(weights, exact)
    for their_results, their_weights in pair.run(in_bfloat16, case, shape):
        assert distance(their_weights, exact) <= 2 * rounding
        assert distance(their_weights, weights) <= 2 * rounding
        for ours, theirs in zip(results, their_results, strict=True):
            for key in ("grad/norm", "entropy/mean", "ratio/mean"):  # the loss is a difference of large terms
                assert theirs.metrics.get(key) == pytest.approx(ours.metrics.get(key), rel=2**-6), key


@pytest.mark.parametrize("case", FAMILIES)
def test_sharded_families_train_and_resume_like_one_rank(case: str, pair: RankPair, tmp_path: Path) -> None:
    family, sizes, settings = FAMILIES[case]
    folder = write_tiny(tmp_path / case, family, **sizes)
    assert_two_ranks_are_one_and_resume_in_one(pair, folder, tmp_path / "saved", settings)


def test_eight_bit_optimizer_state_is_restored_exactly(tmp_path: Path) -> None:
    from torchao.optim.subclass_8bit import OptimState8bit  # type: ignore[import-untyped]

    family, sizes, settings = FAMILIES["8 bits"]
    folder = write_tiny(tmp_path / "model", family, **sizes)
    trainer = trainer_of(folder, (1, 1), **settings)
    one_update(trainer)
    moments = trainer.state()["optimizer"]["model.embed_tokens.weight"]
    assert isinstance(moments["exp_avg"], OptimState8bit)
    trainer.save(tmp_path / "shards").result()
    expected = one_update(trainer)
    resumed = trainer_of(folder, (1, 1), **settings)
    one_update(resumed)
    resumed.restore(tmp_path / "shards")
    weights = one_update(resumed)
    assert all(torch.equal(weight, expected[name]) for name, weight in weights.items())


@pytest.mark.parametrize("case", ROWS)
def test_two_ranks_that_share_a_row_match_one_rank(pair: RankPair, case: str) -> None:
    assert_two_ranks_that_share_a_row_compute_what_one_does(pair, *ROWS[case])
