"""Advantage formulas on pages, which match the computed advantages."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from engine.algorithms.advantages import TrajectoryOutcome, outcome_members
from engine.algorithms.describe import advantage_equation
from engine.config.learning.algorithm import AlgorithmConfig
from engine.types import TerminationReason
from webapp.models import Run, Trajectory
from webapp.rollouts.contexts.advantage import algorithm_of, equation, formula

SUBMITTED, TOO_LONG, LOST = (
    TerminationReason.SUBMITTED,
    TerminationReason.MAX_CONTEXT,
    TerminationReason.ENV_ERROR,
)
GROUP = (
    (1.0, SUBMITTED, 500), (0.0, SUBMITTED, 990), (1.0, TOO_LONG, 1000), (0.0, TOO_LONG, 1000),
    (1.0, SUBMITTED, 960), (0.0, SUBMITTED, 100), (0.5, SUBMITTED, 10), (None, LOST, 0),
)  # fmt: skip


def explained(**settings: Any) -> list[tuple[str, float | None]]:
    """Return the printed formula and the advantage of each trajectory of the group."""
    config = AlgorithmConfig.model_validate(settings)
    outcomes = [
        TrajectoryOutcome(index=index, reward=reward, termination=termination, length=length, kl=0.5)
        for index, (reward, termination, length) in enumerate(GROUP)
    ]
    (members,) = outcome_members([outcomes], config, max_context=1000)
    return [
        (
            formula(
                Trajectory(
                    reward=outcome.reward,
                    baseline=member.baseline,
                    advantage=member.advantage,
                    termination=outcome.termination.value,
                ),
                config,
            ),
            member.advantage,
        )
        for outcome, member in zip(outcomes, members, strict=True)
    ]


SETTINGS: tuple[tuple[str, str, str, dict[str, Any]], ...] = tuple(
    itertools.product(
        ("leave_one_out", "group_mean", "batch_mean", "none"),
        ("none", "group", "batch"),
        ("drop", "keep_real_reward", "keep_zero"),
        ({}, {"overlong_buffer": 100}, {"kl": "k1", "kl_placement": "reward", "kl_coefficient": 0.1}),
    )
)


def test_printed_formulas_evaluate_to_the_advantage() -> None:
    for baseline, std, filtered, penalties in SETTINGS:
        formulas = explained(
            preset="grpo_pp",
            baseline=baseline,
            std_normalisation=std,
            filtered_baseline=filtered,
            **penalties,
        )
        for text, advantage in formulas:
            if advantage is None:
                assert text == ""
            elif text:
                assert re.fullmatch(r"[\d.()+−÷ ]+", text)
                value = eval(text.replace("−", "-").replace("÷", "/"))
                assert value == pytest.approx(advantage, abs=4e-3), text
        masked = {2, 3} if filtered != "drop" else set()
        expected = {0, 1, 4, 5, 6} | masked
        if penalties and std != "none":  # a divided penalty is unknown; keep_zero replaces the reward
            expected = masked if filtered == "keep_zero" else set()
        assert {index for index, (text, _) in enumerate(formulas) if text} == expected


def test_filtered_trajectories_have_zero_reward_under_keep_zero() -> None:
    formulas = explained(preset="grpo_pp", filtered_baseline="keep_zero")
    text, advantage = formulas[2]
    assert (text, round(advantage or 0.0, 3)) == ("0 − 0.417", -0.417)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "A = r − mean(others)"),
        ({"preset": "grpo"}, "A = (r − mean(group)) ÷ std(group)"),
        ({"baseline": "none"}, "A = r"),
        ({"baseline": "batch_mean", "std_normalisation": "batch"}, "A = (r − mean(update)) ÷ std(update)"),
        ({"baseline": "none", "std_normalisation": "group"}, "A = r ÷ std(group)"),
    ],
)
def test_equation_matches_the_objective_of_the_run(settings: dict[str, Any], said: str) -> None:
    config = AlgorithmConfig.model_validate(settings)
    assert advantage_equation(config) == said
    assert equation(Run(config={"algorithm": config.model_dump(mode="json")})) == said


def test_run_without_an_objective_has_no_equation_or_formula() -> None:
    for settings in ({}, {"algorithm": {"baseline": "of another version"}}):
        run = Run(config=settings)
        assert (algorithm_of(run), equation(run)) == (None, "Advantage")
    assert formula(Trajectory(reward=1.0, baseline=0.5, advantage=0.5), None) == ""
