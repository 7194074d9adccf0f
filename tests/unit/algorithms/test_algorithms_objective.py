"""The loss against an independent float64 reference, over random batches and all settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine.algorithms.objective import TokenBatch, policy_loss
from engine.algorithms.weights import trajectory_weights
from engine.config.algorithm import AlgorithmConfig
from tests.unit.algorithms.objective_cases import (
    batches,
    configurations,
    members_of,
    product_loss,
    sampled_without_correction,
    token_batch,
    weights_of,
)
from tests.unit.algorithms.objective_reference import Row, Token, reference_advantages, reference_loss

torch.set_num_threads(1)
CONTEXT = 64


def close(actual: float, expected: float, tolerance: float, scale: float = 1.0) -> bool:
    return abs(actual - expected) <= tolerance * max(1.0, abs(expected), scale)


def assume_no_tie(rows: Sequence[Row], choice: dict[str, Any]) -> None:
    """At a bound itself either side is right, and rewards a rounding error apart are all error."""
    bounds = {1 - choice["clip_low"], 1 + choice["clip_high"], choice["dual_clip"] or 9.0}
    band = {choice["importance_low"], choice["importance_high"]}
    for row in rows:
        new, old = [t.new - t.old for t in row.tokens], [t.old - t.sampler for t in row.tokens]
        means = [sum(gaps) / len(gaps) for gaps in (new, old) if gaps]
        for gap in (*new, *means):
            assume(all(abs(math.exp(gap) - bound) > 1e-5 for bound in bounds))
        for gap in (*old, *means):
            assume(all(abs(math.exp(gap) - bound) > 1e-5 for bound in band))


@settings(deadline=None, max_examples=120)
@given(batches(), configurations)
def test_advantages_equal_the_reference(rows: list[Row], choice: dict[str, Any]) -> None:
    rows = sampled_without_correction(rows, choice)
    members = members_of(rows, AlgorithmConfig(**choice))
    for member, expected in zip(members, reference_advantages(rows, choice, CONTEXT), strict=True):
        assert (member.advantage is None) == (expected is None)
        if expected is not None and member.advantage is not None:
            assert close(member.advantage, expected, 1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@settings(deadline=None, max_examples=150)
@given(batches(), configurations)
def test_loss_and_gradient_equal_the_reference(
    dtype: torch.dtype, tolerance: float, rows: list[Row], choice: dict[str, Any]
) -> None:
    rows = sampled_without_correction(rows, choice)
    assume_no_tie(rows, choice)
    expected, by_logprob, by_entropy = reference_loss(rows, choice, CONTEXT)
    parts, slopes, entropy_slopes = product_loss(rows, AlgorithmConfig(**choice), dtype)
    # Terms of both signs cancel: the error is relative to what is added up.
    scale = sum(abs(slope) for row in by_logprob for slope in row)
    assert close(parts.loss.item(), expected, tolerance, scale)
    for actual, wanted in ((slopes, by_logprob), (entropy_slopes, by_entropy)):
        for row, wanted_row in zip(actual, wanted, strict=True):
            for slope, wanted_slope in zip(row, wanted_row, strict=True):
                assert close(slope, wanted_slope, tolerance, scale)


@settings(deadline=None, max_examples=60)
@given(batches(), configurations, st.randoms(use_true_random=False))
def test_any_cut_in_any_order_has_the_same_loss_and_gradient(
    rows: list[Row], choice: dict[str, Any], rng: Any
) -> None:
    """A cut never separates the tokens of a trajectory."""
    rows = sampled_without_correction(rows, choice)
    config = AlgorithmConfig(**choice)
    members = members_of(rows, config)
    weights = weights_of(rows, members, config)
    whole, slopes, _ = product_loss(rows, config, torch.float64)
    order = list(range(len(rows)))
    rng.shuffle(order)
    total = 0.0
    while order:
        size = rng.randint(1, len(order))
        chunk, order = order[:size], order[size:]
        batch = token_batch(
            [rows[i] for i in chunk], [members[i] for i in chunk], [weights[i] for i in chunk],
            config, torch.float64,
        )  # fmt: skip
        loss = policy_loss(batch, config).loss
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
        assert batch.logprobs.grad is not None
        wanted = [slope for i in chunk if weights[i] for slope in slopes[i]]
        assert batch.logprobs.grad.tolist() == pytest.approx(wanted, rel=1e-12, abs=1e-15)
    assert total == pytest.approx(whole.loss.item(), rel=1e-12, abs=1e-13)


def one_batch(gaps: Sequence[float], advantages: Sequence[float], **columns: Any) -> TokenBatch:
    """Tokens of one trajectory each, with log ρ given and everything else zero."""
    new = torch.tensor(gaps, dtype=torch.float64)
    zeros = torch.zeros_like(new)
    return TokenBatch(
        **{
            "logprobs": new.requires_grad_(), "sampler_logprobs": zeros, "old_logprobs": zeros,
            "reference_logprobs": None, "entropies": None,
            "advantages": torch.tensor(advantages, dtype=torch.float64), "weights": torch.ones_like(new),
            "rows": torch.arange(len(gaps)), "num_rows": len(gaps), **columns,
        }
    )  # fmt: skip


RATIOS = [1.5, 1.5, 0.5, 0.5, 1.25, 1.0]
CAPPED = [1.28, 1.28, 0.8, 0.8, 1.25, 1.0]
ADVANTAGES = [1.0, -1.0, 1.0, -1.0, 2.0, -3.0]


@pytest.mark.parametrize(
    ("choice", "expected", "high", "low"),
    [
        ({}, [-1.28, 1.5, -0.5, 0.8, -2.5, 3.0], [0], [3]),
        ({"dual_clip": 1.25}, [-1.28, 1.25, -0.5, 0.8, -2.5, 3.0], [0], [3]),
        ({"clip_low": 1.0, "clip_high": 4.0}, [-1.5, 1.5, -0.5, 0.5, -2.5, 3.0], [], []),
        ({"clip_high": math.inf}, [-1.5, 1.5, -0.5, 0.8, -2.5, 3.0], [], [3]),
        (
            {"ratio": "cispo"},
            [-r * a * math.log(q) for r, a, q in zip(CAPPED, ADVANTAGES, RATIOS, strict=True)],
            [0, 1], [2, 3],
        ),
        ({"ratio": "none"}, [-a * math.log(q) for a, q in zip(ADVANTAGES, RATIOS, strict=True)], [], []),
    ],
)  # fmt: skip
def test_surrogates_by_hand(
    choice: dict[str, Any], expected: list[float], high: list[int], low: list[int]
) -> None:
    """PPO's clip acts above only for A > 0 and below only for A < 0; CISPO's caps for both."""
    parts = policy_loss(one_batch([math.log(q) for q in RATIOS], ADVANTAGES), AlgorithmConfig(**choice))
    assert parts.token_losses.tolist() == pytest.approx(expected)
    assert parts.loss.item() == pytest.approx(sum(expected))
    assert parts.ratio.tolist() == pytest.approx(RATIOS)
    assert parts.clipped_high.nonzero().flatten().tolist() == high
    assert parts.clipped_low.nonzero().flatten().tolist() == low
    assert parts.clipped_dual.tolist() == [bool(choice.get("dual_clip")) and i == 1 for i in range(6)]


@pytest.mark.parametrize("ratio", ["token", "sequence", "cispo"])
def test_on_the_sampling_weights_the_clip_is_inert(ratio: Any) -> None:
    """ρ = 1 everywhere: no bound acts, and the gradient is REINFORCE's."""
    found = []
    for clip_low, clip_high, dual_clip in ((0.2, 0.28, None), (0.01, 0.01, None), (0.9, 9.0, 1.01)):
        batch = one_batch([0.0] * 6, ADVANTAGES)
        config = AlgorithmConfig(ratio=ratio, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)
        parts = policy_loss(batch, config)
        parts.loss.backward()  # type: ignore[no-untyped-call]
        assert not (parts.clipped_high | parts.clipped_low | parts.clipped_dual).any()
        assert batch.logprobs.grad is not None
        found.append((parts.loss.item(), batch.logprobs.grad.tolist()))
    assert found[0] == found[1] == found[2]
    assert found[0][1] == [-advantage for advantage in ADVANTAGES]


def test_a_capped_cispo_token_still_learns_where_ppo_is_cut_off() -> None:
    gradients = {}
    for ratio in ("token", "cispo"):
        batch = one_batch([math.log(3.0)], [1.0])
        policy_loss(batch, AlgorithmConfig(ratio=ratio)).loss.backward()  # type: ignore[no-untyped-call]
        assert batch.logprobs.grad is not None
        gradients[ratio] = batch.logprobs.grad.item()
    assert gradients == {"token": 0.0, "cispo": pytest.approx(-1.28)}


def test_a_sequence_ratio_is_the_geometric_mean_and_clips_the_whole_trajectory() -> None:
    rows = torch.tensor([0, 0, 1, 1])
    batch = one_batch([0.4, 0.2, 2.0, -2.0], [1.0] * 4, rows=rows, num_rows=2)
    parts = policy_loss(batch, AlgorithmConfig(ratio="sequence", clip_high=0.28))
    assert parts.ratio.tolist() == pytest.approx([math.exp(0.3)] * 2 + [1.0] * 2)
    assert parts.clipped_high.tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("none", None),
        ("token_tis", [2.0, 0.5, 1.0, 1.0]),
        ("icepop", [0.0, 0.5, 1.0, 1.0]),
        ("sequence_mask", [0.0, 0.0, 1.0, 1.0]),
    ],
)
def test_importance_corrections_by_hand(kind: Any, expected: list[float] | None) -> None:
    """The first trajectory's gap is 10 and ½ (geometric mean 2.2), the second's 1."""
    sampler = -torch.tensor([10.0, 0.5, 1.0, 1.0], dtype=torch.float64).log()
    rows = torch.tensor([0, 0, 1, 1])
    batch = one_batch([0.0] * 4, [1.0] * 4, rows=rows, num_rows=2, sampler_logprobs=sampler)
    parts = policy_loss(batch, AlgorithmConfig(importance_correction=kind))
    assert (None if parts.correction is None else parts.correction.tolist()) == (
        None if expected is None else pytest.approx(expected)
    )


@pytest.mark.parametrize("ratio", ["token", "sequence", "cispo", "none"])
@pytest.mark.parametrize("correction", ["none", "token_tis", "icepop", "sequence_mask"])
@pytest.mark.parametrize("dual_clip", [None, 1.25])
def test_masked_tokens_are_those_without_a_gradient(
    ratio: Any, correction: Any, dual_clip: float | None
) -> None:
    sampler = -torch.tensor([10.0, 0.5, 1.0, 1.0, 1.0, 3.0], dtype=torch.float64).log()
    batch = one_batch([math.log(q) for q in RATIOS], ADVANTAGES, sampler_logprobs=sampler)
    config = AlgorithmConfig(ratio=ratio, importance_correction=correction, dual_clip=dual_clip)
    parts = policy_loss(batch, config)
    parts.loss.backward()  # type: ignore[no-untyped-call]
    assert batch.logprobs.grad is not None
    assert parts.masked.tolist() == (batch.logprobs.grad == 0).tolist()


def test_a_sequence_mask_survives_a_hundred_thousand_tokens() -> None:
    """A product of ratios over so many tokens would be e^100: the geometric mean is e^0.001."""
    count = 100_000
    batch = one_batch([0.0] * count, [1.0] * count, rows=torch.zeros(count, dtype=torch.int64), num_rows=1,
                      sampler_logprobs=torch.full((count,), -0.001, dtype=torch.float64))  # fmt: skip
    parts = policy_loss(batch, AlgorithmConfig(importance_correction="sequence_mask"))
    assert parts.correction is not None
    assert parts.correction.min().item() == 1.0


@pytest.mark.parametrize(("kl", "value"), [("k1", 0.5), ("k2", 0.125), ("k3", math.exp(-0.5) - 0.5)])
def test_kl_in_the_loss_by_hand(kl: Any, value: float) -> None:
    """log π − log π_ref = ½, added whatever the advantage."""
    batch = one_batch([0.0], [0.0], reference_logprobs=torch.tensor([-0.5], dtype=torch.float64))
    parts = policy_loss(batch, AlgorithmConfig(kl=kl, kl_coefficient=0.1))
    assert parts.loss.item() == pytest.approx(0.1 * value)
    assert parts.kl is not None
    assert parts.kl.item() == pytest.approx(value)


def test_a_missing_column_is_an_error_that_names_it() -> None:
    with pytest.raises(ValueError, match="reference_logprobs"):
        policy_loss(one_batch([0.0], [1.0]), AlgorithmConfig(kl="k3", kl_coefficient=0.1))
    with pytest.raises(ValueError, match="entropies"):
        policy_loss(one_batch([0.0], [1.0]), AlgorithmConfig(entropy_coefficient=0.1))


@pytest.mark.parametrize("ratio", ["token", "sequence", "none"])
@pytest.mark.parametrize("correction", ["none", "token_tis"])
def test_gradient_by_finite_differences(ratio: Any, correction: Any) -> None:
    """CISPO stops a gradient on purpose, so its loss is not the integral of it."""
    generator = torch.Generator().manual_seed(0)
    config = AlgorithmConfig(
        ratio=ratio, importance_correction=correction, kl="k3", kl_coefficient=0.05, dual_clip=3.0,
        entropy_coefficient=0.01,
    )  # fmt: skip

    def noise(scale: float) -> torch.Tensor:
        return torch.randn(40, generator=generator, dtype=torch.float64) * scale

    old = -torch.rand(40, generator=generator, dtype=torch.float64) * 3
    columns = {
        "sampler_logprobs": old + noise(0.3), "old_logprobs": old, "reference_logprobs": old + noise(0.3),
        "weights": torch.rand(40, generator=generator, dtype=torch.float64),
        "rows": torch.arange(40) // 8, "num_rows": 5,
    }  # fmt: skip
    advantages = noise(1.0).tolist()

    def loss(new: torch.Tensor, entropies: torch.Tensor) -> torch.Tensor:
        batch = one_batch([0.0] * 40, advantages, **{**columns, "logprobs": new, "entropies": entropies})
        return policy_loss(batch, config).loss

    inputs = ((old + noise(0.3)).requires_grad_(), noise(1.0).abs().requires_grad_())
    assert torch.autograd.gradcheck(loss, inputs)


def test_an_empty_microbatch_has_a_loss_of_zero_with_a_graph() -> None:
    """A rank without rows must still be able to call backward."""
    empty = torch.zeros(0, dtype=torch.int64)
    for ratio in ("token", "sequence", "cispo", "none"):
        batch = one_batch([], [], rows=empty, num_rows=0)
        loss = policy_loss(batch, AlgorithmConfig(ratio=ratio, importance_correction="sequence_mask")).loss
        loss.backward()  # type: ignore[no-untyped-call]
        assert loss.item() == 0.0


def weights_by_hand(states: list[str], lengths: list[int], **choice: Any) -> list[float]:
    config = AlgorithmConfig(**choice)
    rows = [Row(0, float(i % 2), state, 0, ()) for i, state in enumerate(states)]
    return trajectory_weights(members_of(rows, config), lengths, config, max_context=100)


def test_the_normaliser_is_a_constant_length_times_a_global_count() -> None:
    assert weights_by_hand(["kept"] * 4, [5, 50, 1, 99]) == [1 / 400] * 4
    assert weights_by_hand(["kept"] * 4, [5, 50, 1, 99], normalisation_length=32) == [1 / 128] * 4
    assert weights_by_hand(["kept"] * 4, [5, 50, 1, 99], aggregation="token_sum") == [1.0] * 4


@pytest.mark.parametrize(
    ("aggregation", "denominator", "expected"),
    [
        ("constant_length", "all", [1 / 300, 0.0, 1 / 300, 0.0]),
        ("constant_length", "kept", [1 / 200, 0.0, 1 / 200, 0.0]),
        ("token_mean", "all", [1 / 60, 0.0, 1 / 60, 0.0]),
        ("token_mean", "kept", [1 / 40, 0.0, 1 / 40, 0.0]),
        ("sequence_mean", "all", [1 / 30, 0.0, 1 / 90, 0.0]),
        ("sequence_mean", "kept", [1 / 20, 0.0, 1 / 60, 0.0]),
    ],
)
def test_whether_filtered_trajectories_count_in_the_denominator(
    aggregation: str, denominator: str, expected: list[float]
) -> None:
    actual = weights_by_hand(
        ["kept", "filtered", "kept", "lost"],
        [10, 20, 30, 40],
        baseline="none",
        aggregation=aggregation,
        denominator=denominator,
    )
    assert actual == pytest.approx(expected)


@pytest.mark.parametrize("aggregation", ["constant_length", "token_mean", "sequence_mean", "token_sum"])
@pytest.mark.parametrize("denominator", ["all", "kept"])
@pytest.mark.parametrize("zero", ["keep", "drop"])
def test_nothing_divides_by_zero_when_nothing_carries_loss(
    aggregation: str, denominator: str, zero: str
) -> None:
    choice = {"aggregation": aggregation, "denominator": denominator, "zero_advantage_groups": zero}
    assert weights_by_hand(["filtered", "lost"], [3, 4], **choice) == [0.0, 0.0]
    assert weights_by_hand(["kept", "kept"], [0, 0], **choice) == [0.0, 0.0]
    assert weights_by_hand([], [], **choice) == []


@pytest.mark.parametrize(("aggregation", "factor"), [("constant_length", 2.0), ("token_mean", 9.0)])
def test_a_uniform_group_counts_unless_it_is_dropped(aggregation: str, factor: float) -> None:
    token = Token(-1.0, -1.2, -1.2, -1.0, 0.0)
    rows = [Row(0, 1.0, "kept", 1, (token,)), Row(0, 0.0, "kept", 1, (token._replace(old=-1.0),))]
    uniform = [Row(1, 1.0, "kept", 8, (token,) * 8)] * 2
    config = AlgorithmConfig(aggregation=aggregation)
    alone = product_loss(rows, config, torch.float64)[0].loss.item()
    kept = product_loss(rows + uniform, config, torch.float64)[0].loss.item()
    dropping = AlgorithmConfig(aggregation=aggregation, zero_advantage_groups="drop")
    dropped = product_loss(rows + uniform, dropping, torch.float64)[0].loss.item()
    assert alone != 0
    assert alone == pytest.approx(kept * factor)
    assert alone == dropped
