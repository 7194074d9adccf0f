"""Advantages of hand-computed groups that cover known errors of published systems."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from engine.algorithms.advantages import Member, group_members, is_informative, step_members
from engine.config.learning.algorithm import AlgorithmConfig
from engine.types import TerminationReason
from tests.unit.trainer.builders.rl_builders import make_group, make_trajectory, random_tokens

Outcome = tuple[float | None, TerminationReason]
SUBMITTED, TIMEOUT = TerminationReason.SUBMITTED, TerminationReason.ROLLOUT_TIMEOUT


def members_of(outcomes: Sequence[Outcome | float], **settings: Any) -> tuple[Member, ...]:
    pairs = [o if isinstance(o, tuple) else (o, SUBMITTED) for o in outcomes]
    trajectories = [make_trajectory(reward, reason, index=i) for i, (reward, reason) in enumerate(pairs)]
    return group_members(trajectories, AlgorithmConfig(**settings), max_context=64)


def values(members: tuple[Member, ...]) -> list[float | None]:
    return [member.advantage for member in members]


def test_leave_one_out_advantages_match_manual_computation() -> None:
    members = members_of([1.0, 0.0, 0.0, 1.0])
    assert values(members) == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3], abs=1e-15)
    assert [m.baseline for m in members] == pytest.approx([1 / 3, 2 / 3, 2 / 3, 1 / 3], abs=1e-15)
    assert all(m.loss_mask and m.mask_reason == "" for m in members)
    assert [m.index for m in members] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("policy", "advantage", "baseline"),
    [("drop", 0.0, None), ("keep_real_reward", 1.0 - 2 / 7, 2 / 7), ("keep_zero", 1.0, 0.0)],
)
def test_filtered_baseline_policies_for_one_success_and_seven_timeouts(
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


def test_termination_reasons_are_filtered_only_if_configured() -> None:
    for reason in (TerminationReason.MAX_CONTEXT, TerminationReason.ENV_TIMEOUT, TerminationReason.MAX_STEPS):
        named = members_of([(0.0, reason), (1.0, SUBMITTED), (0.0, SUBMITTED)], filtered_reasons=(reason,))
        assert (named[0].loss_mask, named[0].mask_reason) == (False, reason.value)
        free = members_of([(0.0, reason), (1.0, SUBMITTED), (0.0, SUBMITTED)], filtered_reasons=())
        assert (free[0].loss_mask, free[0].advantage) == (True, -0.5)


@pytest.mark.parametrize(
    ("policy", "lost"),
    [
        ("drop", (0.0, TerminationReason.ENV_ERROR)),
        ("keep_real_reward", (1.0, TerminationReason.CANCELLED)),
        ("drop", (None, SUBMITTED)),
        ("keep_zero", (None, TIMEOUT)),
    ],
)
def test_infrastructure_failures_do_not_change_other_members(policy: str, lost: Outcome) -> None:
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
@pytest.mark.parametrize(("std", "reward", "size"), [("none", 0.1, 7), ("group", 1 / 3, 3), ("none", 1, 1)])
def test_uniform_and_singleton_groups_have_advantages_of_exactly_zero(
    baseline: str, std: str, reward: float, size: int
) -> None:
    members = members_of([reward] * size, baseline=baseline, std_normalisation=std)
    assert values(members) == [0.0] * size
    assert not any(member.has_signal for member in members)


def test_empty_and_entirely_lost_groups_have_no_advantages() -> None:
    assert group_members([], AlgorithmConfig(), max_context=64) == ()
    members = members_of([(None, SUBMITTED)] * 3)
    assert values(members) == [None] * 3


def step(groups: Sequence[Sequence[float]], **settings: Any) -> list[list[float | None]]:
    built = [
        make_group([make_trajectory(reward, index=i) for i, reward in enumerate(rewards)])
        for rewards in groups
    ]
    return [values(members) for members in step_members(built, AlgorithmConfig(**settings), max_context=64)]


@pytest.mark.parametrize(
    ("baseline", "std"), [("leave_one_out", "none"), ("group_mean", "group"), ("batch_mean", "batch")]
)
def test_an_update_without_groups_or_without_grades_has_no_advantages(baseline: Any, std: Any) -> None:
    settings = {"baseline": baseline, "std_normalisation": std, "zero_advantage_groups": "drop"}
    assert step([], **settings) == []
    assert step([[]], **settings) == [[]]
    lost = make_group([make_trajectory(None, index=i) for i in range(3)])
    members = step_members([lost], AlgorithmConfig(**settings), max_context=64)[0]
    assert values(members) == [None] * 3
    assert all(member.is_infrastructure for member in members)


def overlong(length: int, **settings: Any) -> float | None:
    tokens = random_tokens(random.Random(0), vocab=9, length=length)
    trajectories = [make_trajectory(0.0, tokens=tokens), make_trajectory(0.0, index=1)]
    config = AlgorithmConfig(baseline="none", **settings)
    return group_members(trajectories, config, max_context=100)[0].advantage


@pytest.mark.parametrize(("length", "expected"), [(80, 0.0), (85, -0.25), (100, -1.0), (130, -1.0)])
def test_overlong_penalty_grows_over_the_buffer_up_to_the_limit(length: int, expected: float) -> None:
    assert overlong(length, overlong_buffer=20) == pytest.approx(expected)
    assert overlong(length, overlong_buffer=0.2) == pytest.approx(expected)
    assert overlong(length, overlong_buffer=20, overlong_penalty=0.5) == pytest.approx(expected / 2)


def test_kl_in_the_reward_is_subtracted_before_the_baseline() -> None:
    group = make_group([make_trajectory(1.0), make_trajectory(1.0, index=1)])
    config = AlgorithmConfig(kl="k1", kl_placement="reward", kl_coefficient=0.1)
    (members,) = step_members([group], config, max_context=64, kl_sums=[[2.0, 4.0]])
    assert values(members) == pytest.approx([0.2, -0.2])
    with pytest.raises(ValueError, match="kl_sums"):
        step_members([group], config, max_context=64)
    in_loss = AlgorithmConfig(kl="k1", kl_placement="loss", kl_coefficient=0.1)
    assert values(step_members([group], in_loss, max_context=64)[0]) == [0.0, 0.0]


def test_dropped_groups_are_masked_with_the_reason() -> None:
    outcomes: list[Outcome | float] = [1.0, 1.0, (0.0, TIMEOUT), (None, SUBMITTED)]
    kept = members_of(outcomes)
    assert [m.loss_mask for m in kept] == [True, True, False, False]
    dropped = members_of(outcomes, zero_advantage_groups="drop")
    assert [m.loss_mask for m in dropped] == [False] * 4
    assert [m.mask_reason for m in dropped] == ["zero_advantage"] * 3 + ["infrastructure"]
    assert values(dropped) == values(kept)
    assert members_of([1.0, 0.0], zero_advantage_groups="drop") == members_of([1.0, 0.0])


@pytest.mark.parametrize(
    ("outcomes", "policy", "expected"),
    [
        ([1.0, 0.0], "drop", True),
        ([1.0, 1.0], "drop", False),
        ([1.0], "drop", False),
        ([(1.0, SUBMITTED), (0.0, TIMEOUT)], "drop", False),
        ([(1.0, SUBMITTED), (0.0, TIMEOUT)], "keep_real_reward", True),
        ([(1.0, TIMEOUT), (0.0, TIMEOUT)], "keep_real_reward", False),
        ([(1.0, SUBMITTED), (None, SUBMITTED)], "drop", False),
        ([], "drop", False),
    ],
)
def test_dynamic_sampling_keeps_only_informative_groups(
    outcomes: Sequence[Outcome | float], policy: Any, expected: bool
) -> None:
    pairs = [o if isinstance(o, tuple) else (o, SUBMITTED) for o in outcomes]
    trajectories = [make_trajectory(reward, reason, index=i) for i, (reward, reason) in enumerate(pairs)]
    config = AlgorithmConfig(preset="dapo", filtered_reasons=(TIMEOUT,), filtered_baseline=policy)
    assert is_informative(trajectories, config) is expected
