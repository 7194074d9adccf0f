"""The loss against an independent float64 reference, for every combination of settings."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.algorithms.advantages import Member, group_members
from engine.algorithms.objective import policy_loss, token_surrogate, trajectory_weights
from engine.config.training import AlgorithmConfig
from engine.types import TerminationReason
from tests.unit.engine.objective_reference import Row, reference_advantages, reference_loss
from tests.unit.engine.rl_builders import make_trajectory

torch.set_num_threads(1)
CONTEXT = 64
REASONS = {
    "kept": TerminationReason.SUBMITTED,
    "filtered": TerminationReason.MAX_STEPS,
    "lost": TerminationReason.ENV_ERROR,
}

logprob = st.floats(-6.0, 0.0)
configurations = st.fixed_dictionaries(
    {
        "baseline": st.sampled_from(["leave_one_out", "group_mean", "none"]),
        "std_normalisation": st.sampled_from(["none", "group"]),
        "aggregation": st.sampled_from(["constant_length", "token_mean", "sequence_mean"]),
        "filtered_baseline": st.sampled_from(["drop", "keep_real_reward", "keep_zero"]),
        "denominator": st.sampled_from(["all", "kept"]),
        "normalisation_length": st.sampled_from([None, 40]),
        "clip_low": st.sampled_from([0.2, 0.1]),
        "clip_high": st.sampled_from([0.28, 0.2]),
    }
)


@st.composite
def batches(draw: st.DrawFn) -> list[Row]:
    rows = []
    for group in range(draw(st.integers(1, 4))):
        for _ in range(draw(st.integers(1, 5))):
            pairs = draw(st.lists(st.tuples(logprob, st.floats(-1.5, 1.5)), max_size=6))
            rows.append(
                Row(
                    group,
                    draw(st.sampled_from([0.0, 1.0, 0.0, 1.0, 0.25])),
                    draw(st.sampled_from(["kept", "kept", "kept", "filtered", "lost"])),
                    tuple(new for new, _ in pairs),
                    tuple(new - delta for new, delta in pairs),
                )
            )
    return rows


def members_of(rows: list[Row], config: AlgorithmConfig) -> list[Member]:
    members: list[Member] = []
    for group in sorted({row.group for row in rows}):
        siblings = [row for row in rows if row.group == group]
        members += group_members(
            [make_trajectory(row.reward, REASONS[row.state], index=i) for i, row in enumerate(siblings)],
            config,
        )
    return members


def product_loss(
    rows: list[Row], config: AlgorithmConfig, dtype: torch.dtype
) -> tuple[float, list[list[float]]]:
    members = members_of(rows, config)
    weights = trajectory_weights(members, [len(row.new) for row in rows], config, max_context=CONTEXT)
    scaled = [w * (m.advantage or 0.0) for w, m in zip(weights, members, strict=True)]
    lengths = torch.tensor([len(row.new) for row in rows])
    new = torch.tensor([x for row in rows for x in row.new], dtype=dtype, requires_grad=True)
    old = torch.tensor([x for row in rows for x in row.old], dtype=dtype)
    advantages = torch.repeat_interleave(torch.tensor(scaled, dtype=dtype), lengths)
    loss, _ = policy_loss(new, old, advantages, clip_low=config.clip_low, clip_high=config.clip_high)
    loss.backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    return loss.item(), [part.tolist() for part in torch.split(new.grad, lengths.tolist())]


def close(actual: float, expected: float, tolerance: float) -> bool:
    return abs(actual - expected) <= tolerance * max(1.0, abs(expected))


@settings(deadline=None, max_examples=120)
@given(batches(), configurations)
def test_advantages_equal_the_reference(rows: list[Row], choice: dict[str, Any]) -> None:
    members = members_of(rows, AlgorithmConfig(**choice))
    for member, expected in zip(members, reference_advantages(rows, choice), strict=True):
        assert (member.advantage is None) == (expected is None)
        if expected is not None and member.advantage is not None:
            assert close(member.advantage, expected, 1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@settings(deadline=None, max_examples=120)
@given(batches(), configurations)
def test_loss_and_gradient_equal_the_reference(
    dtype: torch.dtype, tolerance: float, rows: list[Row], choice: dict[str, Any]
) -> None:
    """At a clip bound itself both sides are subgradients: such draws are moved off it."""
    config = AlgorithmConfig(**choice)
    if dtype == torch.float32:
        rows = [Row(r.group, r.reward, r.state, _f32(r.new), _f32(r.old)) for r in rows]
    expected, expected_gradient = reference_loss(rows, choice, CONTEXT)
    actual, gradient = product_loss(rows, config, dtype)
    assert close(actual, expected, tolerance)
    bounds = (1 - config.clip_low, 1 + config.clip_high)
    for row, slopes, expected_slopes in zip(rows, gradient, expected_gradient, strict=True):
        for new, old, slope, expected_slope in zip(row.new, row.old, slopes, expected_slopes, strict=True):
            ratio = torch.tensor(new - old, dtype=torch.float64).exp().item()
            if min(abs(ratio - bound) for bound in bounds) > 1e-6:
                assert close(slope, expected_slope, tolerance)


def _f32(numbers: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(torch.tensor(numbers, dtype=torch.float32).double().tolist())


@settings(deadline=None, max_examples=40)
@given(batches(), configurations, st.randoms(use_true_random=False))
def test_any_cut_in_any_order_sums_to_the_same_loss(
    rows: list[Row], choice: dict[str, Any], rng: Any
) -> None:
    config = AlgorithmConfig(**choice)
    members = members_of(rows, config)
    weights = trajectory_weights(members, [len(row.new) for row in rows], config, max_context=CONTEXT)
    parts = [
        (row, weight * (member.advantage or 0.0))
        for row, weight, member in zip(rows, weights, members, strict=True)
    ]
    rng.shuffle(parts)
    total = 0.0
    while parts:
        size = rng.randint(1, len(parts))
        chunk, parts = parts[:size], parts[size:]
        tokens = [(n, o, a) for row, a in chunk for n, o in zip(row.new, row.old, strict=True)]
        columns = torch.tensor(tokens, dtype=torch.float64).reshape(-1, 3).unbind(1)
        loss, _ = policy_loss(*columns, clip_low=config.clip_low, clip_high=config.clip_high)
        total += loss.item()
    assert close(total, reference_loss(rows, choice, CONTEXT)[0], 1e-12)


def test_surrogate_by_hand() -> None:
    """Clipping acts above 1.28 only for A > 0 and below 0.8 only for A < 0."""
    ratio = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.25, 1.0], dtype=torch.float64)
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0, 2.0, -3.0], dtype=torch.float64)
    expected = [1.28, -1.5, 0.5, -0.8, 2.5, -3.0]
    assert token_surrogate(ratio, advantage, clip_low=0.2, clip_high=0.28).tolist() == pytest.approx(expected)


def test_gradient_by_finite_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    old = -torch.rand(40, generator=generator, dtype=torch.float64) * 3
    new = (old + torch.randn(40, generator=generator, dtype=torch.float64) * 0.3).requires_grad_()
    advantages = torch.randn(40, generator=generator, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda x: policy_loss(x, old, advantages, clip_low=0.2, clip_high=0.28)[0], (new,)
    )


def weights_of(states: list[str], lengths: list[int], **choice: Any) -> list[float]:
    config = AlgorithmConfig(**choice)
    rows = [Row(0, float(i % 2), state, (), ()) for i, state in enumerate(states)]
    return trajectory_weights(members_of(rows, config), lengths, config, max_context=100)


def test_the_normaliser_is_a_constant_length_times_a_global_count() -> None:
    assert weights_of(["kept"] * 4, [5, 50, 1, 99]) == [1 / 400] * 4
    assert weights_of(["kept"] * 4, [5, 50, 1, 99], normalisation_length=32) == [1 / 128] * 4


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
    actual = weights_of(
        ["kept", "filtered", "kept", "lost"],
        [10, 20, 30, 40],
        aggregation=aggregation,
        denominator=denominator,
    )
    assert actual == pytest.approx(expected)


@pytest.mark.parametrize("aggregation", ["constant_length", "token_mean", "sequence_mean"])
@pytest.mark.parametrize("denominator", ["all", "kept"])
def test_nothing_divides_by_zero_when_nothing_carries_loss(aggregation: str, denominator: str) -> None:
    settings_ = {"aggregation": aggregation, "denominator": denominator}
    assert weights_of(["filtered", "lost"], [3, 4], **settings_) == [0.0, 0.0]
    assert weights_of(["kept", "kept"], [0, 0], **settings_) == [0.0, 0.0]
    assert weights_of([], [], **settings_) == []


def test_dropping_uniform_groups_changes_a_token_mean_but_not_a_constant_norm() -> None:
    """A uniform group stays in the counts: it is evidence, its advantages are only zero."""
    rows = [Row(0, 1.0, "kept", (-1.0,), (-1.2,)), Row(0, 0.0, "kept", (-1.0,), (-1.0,))]
    uniform = [Row(1, 1.0, "kept", (-1.0,) * 8, (-1.0,) * 8)] * 2
    for aggregation, factor in (("constant_length", 2.0), ("token_mean", 9.0)):
        config = AlgorithmConfig(aggregation=aggregation)
        without, _ = product_loss(rows, config, torch.float64)
        with_uniform, _ = product_loss(rows + uniform, config, torch.float64)
        assert without == pytest.approx(with_uniform * factor)
