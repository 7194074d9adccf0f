"""Metrics of rollouts, named ``area/name``; shares are between 0 and 1, times in seconds.

To add one: a line in the method of its area.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from statistics import fmean

from engine.evaluation.endings import Endings
from engine.evaluation.metrics import EvaluationTally
from engine.events.failures import policy_of
from engine.rollout.summary import RolloutSummary
from engine.types import INFRASTRUCTURE_REASONS, Group, TerminationReason, Trajectory, Verdict

_THINKING = "tokens/thinking_per_step"
_ALWAYS = (
    "reward/mean",
    "solve/rate",
    "steps/mean",
    "tokens/response_mean",
    _THINKING,
    "tokens/prompt_mean",
    "steps/unparsed",
    "conversation/forks",
    *(f"verdict/{verdict}" for verdict in Verdict),
    "grading/reused",
)
"""Means that are 0 where nothing was measured."""


EndingAndVerdict = tuple[TerminationReason, Verdict | None]


class RolloutMetrics:
    """Metrics of rollouts, accumulated one by one; only a few counts per task are kept.

    Sums are exact, so that the order of the rollouts changes no bit of the result.
    """

    def __init__(self) -> None:
        self.tally = EvaluationTally()
        self.count = self.lost = 0
        self.outcomes: Counter[EndingAndVerdict] = Counter()
        """Rollouts that infrastructure did not lose, by ending and verdict."""
        self.steps = self.prompt_tokens = self.generated_tokens = 0
        self._failures: Counter[str] = Counter()
        self._grading_seconds = Fraction()
        self._graded_seconds = Fraction()
        self._extra_seconds = Fraction()
        self._sums: dict[str, Fraction | int] = dict.fromkeys(_ALWAYS, 0)
        self._weights: Counter[str] = Counter()

    def add(self, rollout: RolloutSummary) -> None:
        """Count a finished rollout."""
        self.count += 1
        self.steps += rollout.num_steps
        self.prompt_tokens += rollout.prompt_tokens
        self.generated_tokens += rollout.generated_tokens
        if rollout.failure:
            self._failures[rollout.failure] += 1
        self.tally.add(
            rollout.key.task_id,
            solved=None if rollout.is_lost else rollout.is_solved,
            cut_short=rollout.is_cut_short,
        )
        if rollout.is_lost:
            self.lost += 1
        else:
            self.outcomes[rollout.termination, rollout.verdict] += 1
            self._mean("reward/mean", rollout.reward or 0.0)
            self._mean("solve/rate", rollout.is_solved)
        if rollout.num_steps:
            self._add_lengths(rollout)
        self._add_endings(rollout)
        self._add_times(rollout)

    @property
    def endings(self) -> Endings:
        """Return the rollouts by ending."""
        counts: Counter[str] = Counter()
        for (termination, _), count in self.outcomes.items():
            counts[termination] += count
        return Endings.of(counts, excluded=self.lost)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of everything added so far."""
        tasks = self.tally.graded
        return {
            **{name: self._average(name) for name in self._sums if not self._is_unknown(name)},
            "solve/cut_short": _share([task.cut_short == task.graded for task in tasks]),
            "solve/none": _share([not task.solved and task.cut_short < task.graded for task in tasks]),
            "solve/partial": _share([0 < task.rate < 1 for task in tasks]),
            "solve/all": _share([task.rate == 1 for task in tasks]),
            "infra/rate": self.lost / max(self.count, 1),
            "time/grading": float(self._grading_seconds),
            "grading/extra_share": float(self._extra_seconds / (self._graded_seconds or 1)),
            **{f"failure/{kind}": n / self.count for kind, n in sorted(self._failures.items())},
        }

    def _average(self, name: str) -> float:
        return float(Fraction(self._sums[name]) / (self._weights[name] or 1))

    def _is_unknown(self, name: str) -> bool:
        """Return whether a mean is undefined because no policy reported the quantity."""
        return name == _THINKING and bool(self.steps) and not self._weights[name]

    def _mean(self, name: str, total: float, weight: int = 1) -> None:
        self._sums[name] = self._sums.get(name, 0) + (total if isinstance(total, int) else Fraction(total))
        self._weights[name] += weight

    def _add_lengths(self, rollout: RolloutSummary) -> None:
        self._mean("steps/mean", rollout.num_steps)
        self._mean("tokens/response_mean", rollout.generated_tokens)
        self._mean("tokens/prompt_mean", rollout.prompt_tokens)
        self._mean("steps/unparsed", rollout.unparsed_steps, rollout.num_steps)
        self._mean("conversation/forks", rollout.forks)
        if rollout.thinking_tokens is not None:
            self._mean(_THINKING, rollout.thinking_tokens, rollout.num_steps)

    def _add_endings(self, rollout: RolloutSummary) -> None:
        for reason in TerminationReason:
            self._mean(f"termination/{reason}", rollout.termination is reason)
        if rollout.verdict is None:
            return
        for verdict in Verdict:
            self._mean(f"verdict/{verdict}", rollout.verdict is verdict)
        self._mean("grading/reused", rollout.reused_verdict)

    def _add_times(self, rollout: RolloutSummary) -> None:
        self._grading_seconds += Fraction(rollout.grading_seconds)
        self._graded_seconds += Fraction(rollout.graded_seconds)
        self._extra_seconds += Fraction(rollout.extra_grading_seconds)
        self._mean("time/queue_mean", rollout.queue_seconds)
        self._mean("time/pull_mean", rollout.pull_seconds)
        self._mean("time/start_mean", rollout.start_seconds)
        self._mean("time/model_mean", rollout.model_seconds)
        self._mean("time/tools_mean", rollout.tool_seconds)
        self._mean("time/tests_mean", rollout.graded_seconds - rollout.extra_grading_seconds)
        self._mean("time/trajectory_mean", rollout.total_seconds)
        self._mean("sandbox/start_ms", 1000 * rollout.sandbox_seconds)


def iteration_metrics(groups: Sequence[Group]) -> RolloutMetrics:
    """Return the metrics derived from finished trajectories alone (no losses, no wall times of phases)."""
    metrics = RolloutMetrics()
    for group in groups:
        for trajectory in group.trajectories:
            metrics.add(RolloutSummary.of(trajectory))
    return metrics


def is_infrastructure(trajectory: Trajectory) -> bool:
    """Return whether infrastructure lost the trajectory or its grading: it does not measure the policy."""
    return trajectory.termination in INFRASTRUCTURE_REASONS or trajectory.reward is None


def is_uniform(group: Group) -> bool:
    """Return whether a group's graded rewards are all equal, so that nothing can be learned from it."""
    rewards = {t.reward for t in group.trajectories if not is_infrastructure(t)}
    return len(rewards) <= 1


def loss_reason(rollout: RolloutSummary) -> str:
    """Return the sandbox failure that lost a rollout, or else the stage at which it was lost."""
    if rollout.failure:
        return policy_of(rollout.failure).name
    ended = rollout.termination in INFRASTRUCTURE_REASONS
    return rollout.termination.replace("_", " ") if ended else "grading"


def _share(values: Sequence[bool]) -> float:
    return fmean(values) if values else 0.0
