"""Metrics of one iteration, named ``area/name``; shares are between 0 and 1, times in seconds.

To add one: a line in the function of its area.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from engine.types import INFRASTRUCTURE_REASONS, Group, TerminationReason, Trajectory, Verdict


def iteration_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Return the metrics derived from finished trajectories alone (no losses, no wall times of phases)."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    return {
        **_rewards(groups, trajectories),
        **_lengths([trajectory for trajectory in trajectories if trajectory.steps]),
        **_endings(trajectories),
        **_times(trajectories),
    }


def is_infrastructure(trajectory: Trajectory) -> bool:
    """Return whether infrastructure lost the trajectory or its grading, so it says nothing of the policy."""
    return trajectory.termination in INFRASTRUCTURE_REASONS or trajectory.reward is None


def is_uniform(group: Group) -> bool:
    """Return whether a group's graded rewards are all equal, so that nothing can be learned from it."""
    rewards = {t.reward for t in group.trajectories if not is_infrastructure(t)}
    return len(rewards) <= 1


def _solved(trajectory: Trajectory) -> bool:
    return trajectory.grade is not None and trajectory.grade.verdict == Verdict.PASSED


def _rewards(groups: Sequence[Group], trajectories: Sequence[Trajectory]) -> dict[str, float]:
    graded = [trajectory for trajectory in trajectories if not is_infrastructure(trajectory)]
    rates = []
    for group in groups:
        siblings = [_solved(t) for t in group.trajectories if not is_infrastructure(t)]
        if siblings:
            rates.append(fmean(siblings))
    return {
        "reward/mean": _mean([trajectory.reward or 0.0 for trajectory in graded]),
        "solve/rate": _mean([_solved(trajectory) for trajectory in graded]),
        "solve/none": _mean([rate == 0 for rate in rates]),
        "solve/partial": _mean([0 < rate < 1 for rate in rates]),
        "solve/all": _mean([rate == 1 for rate in rates]),
        "infra/rate": 1.0 - len(graded) / max(len(trajectories), 1),
        **_failures(trajectories),
    }


def _failures(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return the share of trajectories that ended by a sandbox failure, by the kinds that occurred."""
    kinds = Counter(trajectory.failure for trajectory in trajectories if trajectory.failure)
    return {f"failure/{kind}": count / len(trajectories) for kind, count in sorted(kinds.items())}


def _lengths(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    steps = [step for trajectory in trajectories for step in trajectory.steps]
    responses = [sum(step.generated_tokens for step in t.steps) for t in trajectories]
    thinking = [step.thinking_tokens for step in steps if step.thinking_tokens is not None]
    return {
        "steps/mean": _mean([len(trajectory.steps) for trajectory in trajectories]),
        "tokens/response_mean": _mean(responses),
        **({"tokens/thinking_per_step": _mean(thinking)} if thinking or not steps else {}),
        "tokens/prompt_mean": _mean([t.steps[0].prompt_tokens for t in trajectories]),
        "steps/unparsed": _mean([step.call is None for step in steps]),
        "conversation/forks": _mean([max(len(t.tokens.starts) - 1, 0) for t in trajectories]),
    }


def _endings(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    verdicts = [t.grade.verdict for t in trajectories if t.grade is not None]
    reused = [t.grade.reused for t in trajectories if t.grade is not None]
    endings = {
        f"termination/{reason}": _mean([t.termination == reason for t in trajectories])
        for reason in TerminationReason
    }
    found = {f"verdict/{verdict}": _mean([v == verdict for v in verdicts]) for verdict in Verdict}
    return {**endings, **found, "grading/reused": _mean(reused)}


def _times(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    return {
        "time/grading": sum(trajectory.timings.grading for trajectory in trajectories),
        "time/queue_mean": _mean([t.timings.queue for t in trajectories]),
        "time/pull_mean": _mean([t.timings.pull for t in trajectories]),
        "time/start_mean": _mean([t.timings.start for t in trajectories]),
        "time/model_mean": _mean([t.timings.model for t in trajectories]),
        "time/tools_mean": _mean([t.timings.tools for t in trajectories]),
        "time/trajectory_mean": _mean([t.timings.total for t in trajectories]),
        "sandbox/start_ms": 1000 * _mean([t.timings.sandbox for t in trajectories]),
    }


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0
