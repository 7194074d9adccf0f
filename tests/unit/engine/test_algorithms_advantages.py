"""Advantages: hand-computed groups, each a trap that published systems fall into."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from engine.algorithms.advantages import Member, group_members
from engine.config.algorithm import AlgorithmConfig
from engine.types import TerminationReason
from tests.unit.engine.rl_builders import make_trajectory

Outcome = tuple[float | None, TerminationReason]
SUBMITTED, TIMEOUT = TerminationReason.SUBMITTED, TerminationReason.ROLLOUT_TIMEOUT


def members_of(outcomes: Sequence[Outcome | float], **settings: Any) -> tuple[Member, ...]:
    pairs = [o if isinstance(o, tuple) else (o, SUBMITTED) for o in outcomes]
    trajectories = [make_trajectory(reward, reason, index=i) for i, (reward, reason) in enumerate(pairs)]
    return group_members(trajectories, AlgorithmConfig(**settings), max_context=64)


def values(members: tuple[Member, ...]) -> list[float | None]:
    return [member.advantage for member in members]


def test_leave_one_out_by_hand() -> None:
    members = members_of([1.0, 0.0, 0.0, 1.0])
    assert values(members) == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3], abs=1e-15)
    assert [m.baseline for m in members] == pytest.approx([1 / 3, 2 / 3, 2 / 3, 1 / 3], abs=1e-15)
    assert all(m.loss_mask and m.mask_reason == "" for m in members)
    assert [m.index for m in members] == [0, 1, 2, 3]


def test_leave_one_out_is_the_group_mean_advantage_times_n_over_n_minus_1() -> None:
    rewards = [1.0, 0.0, 0.5, 0.0, 1.0, 0.0, 0.0, 0.25]
    looped, mean = values(members_of(rewards)), values(members_of(rewards, baseline="group_mean"))
    for a, b in zip(looped, mean, strict=True):
        assert a is not None
        assert b is not None
        assert a == pytest.approx(b * 8 / 7, abs=1e-15)


def test_after_filtering_that_factor_differs_per_group() -> None:
    full = members_of([1.0, 0.0, 0.0, 0.0])
    thinned = members_of([(1.0, SUBMITTED), (0.0, SUBMITTED), (0.0, TIMEOUT), (0.0, TIMEOUT)])
    assert (full[0].advantage, thinned[0].advantage) == (1.0, 1.0)
    assert full[1].advantage == pytest.approx(-1 / 3)
    assert thinned[1].advantage == -1.0


@pytest.mark.parametrize(
    ("policy", "advantage", "baseline"),
    [("drop", 0.0, None), ("keep_real_reward", 1.0 - 2 / 7, 2 / 7), ("keep_zero", 1.0, 0.0)],
)
def test_one_success_and_seven_timeouts_under_each_policy(
    policy: str, advantage: float, baseline: float | None
) -> None:
    """Two of the timed-out trajectories would have passed their tests."""
    outcomes = [(1.0, SUBMITTED)] + [(1.0, TIMEOUT)] * 2 + [(0.0, TIMEOUT)] * 5
    members = members_of(outcomes, filtered_baseline=policy)
    assert members[0].advantage == pytest.approx(advantage)
    assert members[0].baseline == (None if baseline is None else pytest.approx(baseline))
    for member in members[1:]:
        assert not member.loss_mask
        assert member.mask_reason == "rollout_timeout"
        assert (member.advantage is None) == (policy == "drop")


def test_every_reason_is_filtered_only_when_it_is_named() -> None:
    for reason in (TerminationReason.MAX_CONTEXT, TerminationReason.ENV_TIMEOUT, TerminationReason.MAX_STEPS):
        named = members_of([(0.0, reason), (1.0, SUBMITTED), (0.0, SUBMITTED)], filtered_reasons=(reason,))
        assert (named[0].loss_mask, named[0].mask_reason) == (False, reason.value)
        free = members_of([(0.0, reason), (1.0, SUBMITTED), (0.0, SUBMITTED)], filtered_reasons=())
        assert (free[0].loss_mask, free[0].advantage) == (True, -0.5)


@pytest.mark.parametrize("policy", ["drop", "keep_real_reward", "keep_zero"])
@pytest.mark.parametrize(
    "lost",
    [
        (0.0, TerminationReason.ENV_ERROR),
        (1.0, TerminationReason.CANCELLED),
        (None, SUBMITTED),
        (None, TIMEOUT),
    ],
)
def test_infrastructure_failures_change_nothing_for_the_others(policy: str, lost: Outcome) -> None:
    others: list[Outcome] = [(1.0, SUBMITTED), (0.0, SUBMITTED), (0.0, TIMEOUT)]
    with_lost = members_of([*others, lost], filtered_baseline=policy)
    assert with_lost[:3] == members_of(others, filtered_baseline=policy)
    assert with_lost[3] == Member(
        index=3, advantage=None, baseline=None, loss_mask=False, mask_reason="infrastructure"
    )


def test_an_infrastructure_reason_cannot_be_filtered() -> None:
    with pytest.raises(ValueError, match="env_error"):
        AlgorithmConfig(filtered_reasons=(TerminationReason.ENV_ERROR,))


@pytest.mark.parametrize("baseline", ["leave_one_out", "group_mean"])
@pytest.mark.parametrize("std", ["none", "group"])
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1 / 3])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_uniform_and_singleton_groups_have_advantages_of_exactly_zero(
    baseline: str, std: str, reward: float, size: int
) -> None:
    members = members_of([reward] * size, baseline=baseline, std_normalisation=std)
    assert values(members) == [0.0] * size
    assert not any(member.has_signal for member in members)


def test_without_a_baseline_the_reward_is_the_advantage() -> None:
    assert values(members_of([1.0], baseline="none")) == [1.0]
    assert values(members_of([1.0, 1.0], baseline="none", std_normalisation="group")) == [1.0, 1.0]


def test_group_standard_deviation_uses_n_minus_1_and_survives_one_success() -> None:
    members = members_of([1.0, 0.0, 0.0, 0.0], baseline="group_mean", std_normalisation="group")
    deviation = math.sqrt((0.75**2 + 3 * 0.25**2) / 3) + 1e-6
    assert values(members) == pytest.approx([0.75 / deviation] + [-0.25 / deviation] * 3, rel=1e-15)
    spiky = members_of([1.0] + [0.0] * 7, std_normalisation="group")
    assert spiky[0].advantage is not None
    assert spiky[0].advantage < 3.0


def test_a_group_that_infrastructure_lost_entirely_or_that_is_empty() -> None:
    assert group_members([], AlgorithmConfig(), max_context=64) == ()
    members = members_of([(None, SUBMITTED)] * 3)
    assert values(members) == [None] * 3
