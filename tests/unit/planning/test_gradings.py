"""Planned grading times, which are longer for audited submissions."""

from __future__ import annotations

from typing import Literal

import pytest

from engine.config.rollout import AgentConfig, GradingConfig
from engine.planning.assumptions import Assumptions
from engine.planning.workload import SAMPLE, sample_rollouts

ASSUME = Assumptions(solve_rate=0.5, grading_s=10.0, grading_spread=1e-9)


@pytest.mark.parametrize(
    ("mode", "evaluation", "audited", "runs"),
    [
        ("off", False, 0, 1),
        ("off", True, 0, 1),
        ("sample", False, SAMPLE // 16, 2),
        ("sample", True, SAMPLE // 2, 4),
        ("always", False, SAMPLE // 2, 2),
        ("always", True, SAMPLE // 2, 4),
    ],
)
def test_audited_passing_submissions_take_additional_mutated_test_runs(
    mode: Literal["off", "sample", "always"], evaluation: bool, audited: int, runs: int
) -> None:
    grading = GradingConfig(counterfactual=mode)
    rollouts = sample_rollouts(SAMPLE, AgentConfig(), grading, ASSUME, evaluation=evaluation)
    times = [round(rollout.grading_s / 10.0, 6) for rollout in rollouts]
    assert (times.count(runs), times.count(1)) == (
        (audited, SAMPLE - audited) if audited else (SAMPLE, SAMPLE)
    )
