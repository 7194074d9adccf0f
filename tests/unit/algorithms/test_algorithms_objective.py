"""The loss compared with an independent float64 reference, over random batches and all settings."""

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
from engine.config.learning.algorithm import AlgorithmConfig
from tests.unit.algorithms.objective_cases import (
    batches,
    configurations,
    members_of,
    product_loss,
    sampled_without_correction,
    token_batch,
    weights_of,
)
from tests.unit.algorithms.objective_reference import Row, reference_advantages, reference_loss

torch.set_num_threads(1)
CONTEXT = 64


def close(actual: float, expected: float, tolerance: float, scale: float = 1.0) -> bool:
    return abs(actual - expected) <= tolerance * max(1.0, abs(expected), scale)


def assume_no_tie(rows: Sequence[Row], choice: dict[str, Any]) -> None:
    """Reject batches with a ratio close to a bound, where both results are correct."""
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


@settings(deadline=None, max_examples=200)
@given(batches(), configurations)
def test_loss_and_gradient_equal_the_reference(rows: list[Row], choice: dict[str, Any]) -> None:
    rows = sampled_without_correction(rows, choice)
    assume_no_tie(rows, choice)
    expected, by_logprob, by_entropy = reference_loss(rows, choice, CONTEXT)
    # Terms of both signs cancel: the error is relative to the sum of magnitudes.
    scale = sum(abs(slope) for row in by_logprob for slope in row)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        parts, slopes, entropy_slopes = product_loss(rows, AlgorithmConfig(**choice), dtype)
        assert close(parts.loss.item(), expected, tolerance, scale)
        for actual, wanted in ((slopes, by_logprob), (entropy_slopes, by_entropy)):
            for row, wanted_row in zip(actual, wanted, strict=True):
                for slope, wanted_slope in zip(row, wanted_row, strict=True):
                    assert close(slope, wanted_slope, tolerance, scale)


@settings(deadline=None, max_examples=60)
@given(batches(), configurations, st.randoms(use_true_random=False))
def test_loss_and_gradient_do_not_depend_on_microbatching_or_order(
    rows: list[Row], choice: dict[str, Any], rng: Any
) -> None:
    """Microbatches never split a trajectory."""
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
    """Return one token per trajectory with the given log ρ and zeros elsewhere."""
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
def test_surrogate_losses_match_manual_computation(
    choice: dict[str, Any], expected: list[float], high: list[int], low: list[int]
) -> None:
    """PPO clips above only for A > 0 and below only for A < 0; CISPO caps for both signs."""
    parts = policy_loss(one_batch([math.log(q) for q in RATIOS], ADVANTAGES), AlgorithmConfig(**choice))
    assert parts.token_losses.tolist() == pytest.approx(expected)
    assert parts.loss.item() == pytest.approx(sum(expected))
    assert parts.ratio.tolist() == pytest.approx(RATIOS)
    assert parts.clipped_high.nonzero().flatten().tolist() == high
    assert parts.clipped_low.nonzero().flatten().tolist() == low
    assert parts.clipped_dual.tolist() == [bool(choice.get("dual_clip")) and i == 1 for i in range(6)]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("none", None),
        ("token_tis", [2.0, 0.5, 1.0, 1.0]),
        ("icepop", [0.0, 0.5, 1.0, 1.0]),
        ("sequence_mask", [0.0, 0.0, 1.0, 1.0]),
    ],
)
def test_importance_corrections_match_manual_computation(kind: Any, expected: list[float] | None) -> None:
    """The first trajectory's ratios are 10 and ½ (geometric mean 2.2), the second's 1."""
    sampler = -torch.tensor([10.0, 0.5, 1.0, 1.0], dtype=torch.float64).log()
    rows = torch.tensor([0, 0, 1, 1])
    batch = one_batch([0.0] * 4, [1.0] * 4, rows=rows, num_rows=2, sampler_logprobs=sampler)
    parts = policy_loss(batch, AlgorithmConfig(importance_correction=kind))
    assert (None if parts.correction is None else parts.correction.tolist()) == (
        None if expected is None else pytest.approx(expected)
    )


@pytest.mark.parametrize(
    ("ratio", "correction", "dual_clip"),
    [("token", "none", None), ("token", "icepop", 1.25), ("sequence", "sequence_mask", 1.25),
     ("cispo", "icepop", None), ("none", "token_tis", None)],
)  # fmt: skip
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


def test_sequence_mask_is_stable_over_a_hundred_thousand_tokens() -> None:
    """The product of all ratios would be e^100; the geometric mean is e^0.001."""
    count = 100_000
    batch = one_batch([0.0] * count, [1.0] * count, rows=torch.zeros(count, dtype=torch.int64), num_rows=1,
                      sampler_logprobs=torch.full((count,), -0.001, dtype=torch.float64))  # fmt: skip
    parts = policy_loss(batch, AlgorithmConfig(importance_correction="sequence_mask"))
    assert parts.correction is not None
    assert parts.correction.min().item() == 1.0


def test_a_missing_column_is_an_error_that_names_it() -> None:
    with pytest.raises(ValueError, match="reference_logprobs"):
        policy_loss(one_batch([0.0], [1.0]), AlgorithmConfig(kl="k3", kl_coefficient=0.1))
    with pytest.raises(ValueError, match="entropies"):
        policy_loss(one_batch([0.0], [1.0]), AlgorithmConfig(entropy_coefficient=0.1))


def test_an_empty_microbatch_has_a_differentiable_loss_of_zero() -> None:
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


@pytest.mark.parametrize(
    ("aggregation", "denominator", "zero"),
    [("constant_length", "kept", "drop"), ("token_mean", "all", "drop"), ("sequence_mean", "kept", "keep")],
)
def test_weights_are_zero_if_no_trajectory_carries_loss(
    aggregation: str, denominator: str, zero: str
) -> None:
    choice = {"aggregation": aggregation, "denominator": denominator, "zero_advantage_groups": zero}
    assert weights_by_hand(["filtered", "lost"], [3, 4], **choice) == [0.0, 0.0]
    assert weights_by_hand(["kept", "kept"], [0, 0], **choice) == [0.0, 0.0]
    assert weights_by_hand([], [], **choice) == []
