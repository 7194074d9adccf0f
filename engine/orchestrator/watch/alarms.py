"""Alerts about problems that curves show too late, each with the groups to inspect.

The README of this package lists them. An alert is raised when its condition begins to hold and again only
after it has ceased to; infrastructure and gradient alerts are raised every time. Clipping and mismatch are
measured over a whole update: those alerts name the groups with the most sampled tokens.

To add one: a ``_Check`` in ``_CHECKS``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

from engine.orchestrator.context import RunContext
from engine.orchestrator.watch.machine import MachineLoad
from engine.orchestrator.watch.metrics import RolloutMetrics, is_infrastructure, is_uniform
from engine.orchestrator.watch.rollout_alarms import (
    MAX_GROUPS,
    alike_message,
    busy_message,
    limits_message,
    losses_message,
    unreadable_message,
)
from engine.rollout.summary import RolloutSummary
from engine.types import LIMITS, Group, TerminationReason

UNIFORM_SHARE_MAX = 0.9
ENTROPY_LOW, ENTROPY_FLOOR = 0.1, 0.005
ENTROPY_HIGH, ENTROPY_CEILING = 3.0, 0.5
CLIP_SHARE_MAX = 0.3
MISMATCH_MAX = 0.05
"""Maximum mismatch of sampler and trainer, nats per token; published thresholds are a mean probability
ratio of 1.05."""
LENGTH_GROWTH_MAX = 2.0
TREND = 0.05
WINDOW = 5
"""Iterations in each half of a trend."""
START = 3
"""Number of first iterations whose mean defines a metric's start value."""

_TRACKED = ("reward/mean", "termination/submitted")
_STARTS = ("entropy/mean", "tokens/response_mean")
_ENTROPY, _LENGTH = _STARTS


@dataclass(slots=True)
class _State:
    """State that must survive a restart."""

    in_a_row: dict[str, int] = field(default_factory=dict)
    """Code → number of consecutive iterations in which its condition held."""
    starts: dict[str, list[float]] = field(default_factory=dict)
    """First values of the metrics compared with a run's start."""
    recent: dict[str, list[float]] = field(default_factory=dict)
    """Latest values of the metrics whose trend is watched."""

    def observe(self, metrics: Mapping[str, float]) -> None:
        for name in _STARTS:
            first = self.starts.setdefault(name, [])
            if name in metrics and len(first) < START:
                first.append(metrics[name])
        for name in _TRACKED:
            self.recent[name] = [*self.recent.get(name, []), metrics[name]][-2 * WINDOW :]

    def start(self, name: str) -> float | None:
        """Return the mean of the run's first iterations; None until they are complete."""
        first = self.starts.get(name, [])
        return fmean(first) if len(first) == START else None

    def change(self, name: str) -> float:
        """Return the mean of the last window minus that of the previous one; 0 until there are two."""
        values = self.recent.get(name, [])
        return fmean(values[WINDOW:]) - fmean(values[:WINDOW]) if len(values) == 2 * WINDOW else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Iteration:
    """Input of the checks: an iteration's data."""

    groups: Sequence[Group]
    rollouts: RolloutMetrics
    metrics: Mapping[str, float]
    state: _State
    load: MachineLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class _Check:
    """Definition of an alert: condition, message, and ranking of the groups to name."""

    code: str
    severity: Literal["warning", "error"] = "warning"
    find: Callable[[_Iteration], str | None]
    """Function that returns the message if the condition holds."""
    rank: Callable[[Group], float]
    """Score of a group; groups with the highest positive scores are named."""
    patience: int | None = 1
    """Consecutive iterations before the alert; None alerts every time."""


class Alarms:
    """Monitor of iterations; its state is stored in checkpoints."""

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self._state = _State()

    def after_iteration(
        self,
        iteration: int,
        groups: Sequence[Group],
        rollouts: RolloutMetrics,
        metrics: Mapping[str, float],
        load: MachineLoad,
    ) -> None:
        """Check a finished iteration.

        Args:
            iteration: its number.
            groups: every group that was sampled.
            rollouts: metrics of their rollouts.
            metrics: metrics of the iteration, including the trainer's.
            load: load of the machine during the iteration.
        """
        self._state.observe(metrics)
        seen = _Iteration(groups=groups, rollouts=rollouts, metrics=metrics, state=self._state, load=load)
        for check in _CHECKS:
            message = check.find(seen)
            in_a_row = self._state.in_a_row.get(check.code, 0) + 1 if message else 0
            self._state.in_a_row[check.code] = in_a_row
            if message and (check.patience is None or in_a_row == check.patience):
                self._alert(check, message, iteration, groups)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that must survive a restart, as JSON."""
        return dataclasses.asdict(self._state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self._state = _State(**state)

    def _alert(self, check: _Check, message: str, iteration: int, groups: Sequence[Group]) -> None:
        ranked = sorted(((check.rank(group), group) for group in groups), key=lambda pair: -pair[0])
        named = [group.task for value, group in ranked if value > 0][:MAX_GROUPS]
        if named:
            message += f"; look at {', '.join(task.instance_id for task in named)}"
        self._run.alert(check.severity, check.code, message, iteration, task_ids=[task.id for task in named])


def _infrastructure(seen: _Iteration) -> str | None:
    lost = [
        RolloutSummary.of(trajectory)
        for group in seen.groups
        for trajectory in group.trajectories
        if is_infrastructure(trajectory)
    ]
    return losses_message(seen.metrics["infra/rate"], lost)


def _nothing_trained(seen: _Iteration) -> str | None:
    if seen.metrics.get("tokens/trained", 1.0):
        return None
    endings = seen.rollouts.endings
    counts = [
        f"{count} × {name}"
        for name, count in (
            ("submitted", endings.submitted),
            *((reason.words, count) for reason, count in endings.limits.items()),
            ("lost to infrastructure", endings.excluded),
        )
        if count
    ]
    return (
        f"the update trained on no token: every rollout was masked or had siblings with the same reward "
        f"({', '.join(counts)}); the weights did not change"
    )


def _limits(seen: _Iteration) -> str | None:
    if _unreadable(seen) is not None or _alike(seen) is not None:
        return None
    return limits_message(seen.rollouts.endings, seen.load)


def _alike(seen: _Iteration) -> str | None:
    return None if _unreadable(seen) is not None else alike_message(seen.rollouts.outcomes)


def _busy(seen: _Iteration) -> str | None:
    return busy_message(seen.rollouts.endings, seen.load)


def _not_finite(seen: _Iteration) -> str | None:
    steps = seen.metrics.get("update/nonfinite", 0.0)
    return f"{steps:.0f} step(s) were skipped: the gradient was not finite" if steps else None


def _uniform(seen: _Iteration) -> str | None:
    share = fmean(map(is_uniform, seen.groups)) if seen.groups else 0.0
    if share < UNIFORM_SHARE_MAX:
        return None
    return (
        f"{share:.0%} of the groups had equal rewards, {UNIFORM_PATIENCE} iterations in a row: "
        "little is learned"
    )


def _unreadable(seen: _Iteration) -> str | None:
    return unreadable_message(seen.metrics)


def _entropy_low(seen: _Iteration) -> str | None:
    entropy, start = seen.metrics.get(_ENTROPY), seen.state.start(_ENTROPY)
    if entropy is None:
        return None
    if entropy >= ENTROPY_FLOOR and (start is None or entropy >= ENTROPY_LOW * start):
        return None
    return f"entropy fell to {entropy:.3g} nats{_from(start)}: the policy is collapsing"


def _entropy_high(seen: _Iteration) -> str | None:
    entropy, start = seen.metrics.get(_ENTROPY), seen.state.start(_ENTROPY)
    if entropy is None or start is None or entropy <= max(ENTROPY_HIGH * start, ENTROPY_CEILING):
        return None
    return f"entropy rose to {entropy:.3g} nats{_from(start)}: the policy is becoming random"


def _clipping(seen: _Iteration) -> str | None:
    high, low = seen.metrics.get("clip/high", 0.0), seen.metrics.get("clip/low", 0.0)
    if high + low <= CLIP_SHARE_MAX:
        return None
    return (
        f"{high + low:.0%} of the trained tokens were clipped ({high:.0%} above, {low:.0%} below): "
        "steps are too large"
    )


def _mismatch(seen: _Iteration) -> str | None:
    gap = seen.metrics.get("mismatch/mean", 0.0)
    if gap <= MISMATCH_MAX:
        return None
    return f"sampler and trainer disagree by {gap:.3g} nats a token on the same weights"


def _not_invariant(seen: _Iteration) -> str | None:
    if seen.metrics.get("sampling/batch_invariant", 1.0):
        return None
    return (
        "on this processor the last bits of log-probabilities depend on the composition of batches: "
        "a resumed run may differ from an uninterrupted one"
    )


def _length(seen: _Iteration) -> str | None:
    length, start = seen.metrics.get(_LENGTH, 0.0), seen.state.start(_LENGTH)
    if not start or length <= LENGTH_GROWTH_MAX * start:
        return None
    return f"responses grew to {length:.0f} tokens{_from(start)}"


def _reward_without_submission(seen: _Iteration) -> str | None:
    reward, submitted = (seen.state.change(name) for name in _TRACKED)
    if reward < TREND or submitted > -TREND:
        return None
    return (
        f"over {WINDOW} iterations the mean reward rose by {reward:.2f} while the share of submitted "
        f"trajectories fell by {-submitted:.2f}: the reward may not require solving the task"
    )


def _from(start: float | None) -> str:
    return "" if start is None else f" from {start:.3g} in the run's first {START} iterations"


def _lost(group: Group) -> float:
    return sum(is_infrastructure(trajectory) for trajectory in group.trajectories)


def _limited(group: Group) -> float:
    return sum(trajectory.termination in LIMITS for trajectory in group.trajectories)


def _sampled_tokens(group: Group) -> float:
    return sum(trajectory.tokens.num_sampled for trajectory in group.trajectories)


def _mean_response(group: Group) -> float:
    return _sampled_tokens(group) / len(group.trajectories)


def _surprise(group: Group) -> float:
    """Return the mean −log μ of the sampled tokens, an estimate of the entropy on this task."""
    total = sum(float(trajectory.tokens.logprobs.sum(dtype="f8")) for trajectory in group.trajectories)
    return -total / max(_sampled_tokens(group), 1.0)


def _sureness(group: Group) -> float:
    return 1.0 / (1.0 + _surprise(group)) if _sampled_tokens(group) else 0.0


def _rewarded_unsubmitted(group: Group) -> float:
    return sum(
        (trajectory.reward or 0.0) > 0 and trajectory.termination != TerminationReason.SUBMITTED
        for trajectory in group.trajectories
    )


def _nothing(_group: Group) -> float:
    return 0.0


UNIFORM_PATIENCE, CLIP_PATIENCE, LENGTH_PATIENCE = 3, 2, 2

_CHECKS = (
    _Check(code="infrastructure_rate", find=_infrastructure, rank=_lost, patience=None),
    _Check(
        code="gradient_not_finite", severity="error", find=_not_finite, rank=_sampled_tokens, patience=None
    ),
    _Check(code="unreadable_calls", find=_unreadable, rank=_nothing),
    _Check(code="nothing_trained", find=_nothing_trained, rank=_limited),
    _Check(code="rollouts_alike", find=_alike, rank=_limited),
    _Check(code="rollout_limits", find=_limits, rank=_limited),
    _Check(code="machine_busy", find=_busy, rank=_nothing),
    _Check(code="uniform_groups", find=_uniform, rank=is_uniform, patience=UNIFORM_PATIENCE),
    _Check(code="entropy_low", find=_entropy_low, rank=_sureness),
    _Check(code="entropy_high", find=_entropy_high, rank=_surprise),
    _Check(code="clip_fraction", find=_clipping, rank=_sampled_tokens, patience=CLIP_PATIENCE),
    _Check(code="mismatch", find=_mismatch, rank=_sampled_tokens),
    _Check(code="not_batch_invariant", find=_not_invariant, rank=_nothing),
    _Check(code="response_length", find=_length, rank=_mean_response, patience=LENGTH_PATIENCE),
    _Check(code="reward_without_submission", find=_reward_without_submission, rank=_rewarded_unsubmitted),
)
