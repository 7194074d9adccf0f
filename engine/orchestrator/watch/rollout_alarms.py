"""Alarms about rollout outcomes that limits, settings or the machine cause rather than the policy.

Training checks them per iteration (``alarms``). Collections and evaluations, which keep counts only, check
them while they run and at their end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from engine.evaluation.endings import Endings
from engine.orchestrator.context import RunContext
from engine.orchestrator.watch.machine import MachineLoad, MachineProbe
from engine.orchestrator.watch.metrics import EndingAndVerdict, RolloutMetrics, loss_reason
from engine.rollout.summary import RolloutSummary
from engine.types import TerminationReason, Verdict

INFRA_RATE_MAX = 0.02
TIMED_SHARE_MAX = 0.1
LIMITED_SHARE_MAX = 0.5
MIN_ALIKE = 8
"""Minimum number of rollouts whose equal endings are a pattern."""
MIN_WHILE_RUNNING = 50
"""Finished rollouts before shares of an unfinished collection raise alerts."""
MAX_GROUPS = 5
"""Maximum number of groups named by an alert."""
_ORDINARY = frozenset({Verdict.PASSED, Verdict.FAILED})


class RolloutAlarms:
    """Alarms of one collection or evaluation; each is raised once.

    Args:
        run: the run.
        iteration: of the rollouts.
        instances: readable names of the tasks, by id.
    """

    def __init__(self, run: RunContext, *, iteration: int, instances: Mapping[str, str]) -> None:
        self._run, self._iteration, self._instances = run, iteration, instances
        self._machine = MachineProbe()
        self._raised: set[str] = set()

    def machine_load(self) -> MachineLoad:
        """Return the load of the machine since the collection or evaluation began."""
        return self._machine.load()

    def check(
        self, metrics: RolloutMetrics, lost: Collection[RolloutSummary] = (), *, ended: bool = False
    ) -> None:
        """Check the finished rollouts.

        Args:
            metrics: of the finished rollouts, with or without the lost ones.
            lost: rollouts lost to infrastructure.
            ended: whether all have finished; until then, fewer than ``MIN_WHILE_RUNNING`` raise no alert.
        """
        count = metrics.count - metrics.lost + len(lost)
        if not count or (not ended and count < MIN_WHILE_RUNNING):
            return
        load = self._machine.load()
        self._alert_of_losses(lost, count)
        unreadable = unreadable_message(metrics.metrics()) if ended else None
        alike = alike_message(metrics.outcomes)
        if unreadable is not None:
            self._alert("unreadable_calls", unreadable)
        elif alike is not None:
            self._alert("rollouts_alike", alike)
        else:
            self._alert("rollout_limits", limits_message(metrics.endings, load))
        self._alert("machine_busy", busy_message(metrics.endings, load))

    def _alert_of_losses(self, lost: Collection[RolloutSummary], count: int) -> None:
        message = losses_message(len(lost) / count, lost)
        if message is None:
            return
        most = Counter(rollout.key.task_id for rollout in lost).most_common(MAX_GROUPS)
        tasks = [task for task, _ in most]
        message += f"; look at {', '.join(self._instances[task] for task in tasks)}"
        self._alert("infrastructure_rate", message, tasks)

    def _alert(self, code: str, message: str | None, tasks: Collection[str] = ()) -> None:
        if message is not None and code not in self._raised:
            self._raised.add(code)
            self._run.alert("warning", code, message, self._iteration, task_ids=tuple(tasks))


def losses_message(rate: float, lost: Collection[RolloutSummary]) -> str | None:
    """Return a message about the share of lost rollouts and their reasons; None below the limit."""
    if rate <= INFRA_RATE_MAX:
        return None
    reasons = Counter(map(loss_reason, lost))
    why = ", ".join(f"{count} × {reason}" for reason, count in reasons.most_common())
    return f"infrastructure lost {rate:.1%} of the rollouts ({why})"


def unreadable_message(metrics: Mapping[str, float]) -> str | None:
    """Return a message if no response had a readable tool call, else None."""
    if metrics.get("steps/unparsed", 0.0) < 1.0:
        return None
    return (
        "no response had a readable tool call: check agent.tool_format, agent.prompt and the model, or start "
        "from a checkpoint that can call tools"
    )


def limits_message(endings: Endings, load: MachineLoad) -> str | None:
    """Return a message about the limits that ended rollouts; None if they ended few."""
    graded, limited, timed = endings.graded, endings.limited, endings.timed
    if not graded or (timed <= TIMED_SHARE_MAX * graded and limited <= LIMITED_SHARE_MAX * graded):
        return None
    kinds = ", ".join(f"{count} × {reason.words}" for reason, count in endings.limits.items())
    message = f"limits ended {limited} of {graded} rollouts ({kinds})"
    if timed <= TIMED_SHARE_MAX * graded:
        return f"{message}: the solve rate measures the limits as much as the policy"
    return (
        f"{message}: with more time some may be solved, so the solve rate underestimates the policy; free "
        f"the machine ({load}), lower rollout.max_concurrent, or raise the time limits"
    )


def alike_message(outcomes: Mapping[EndingAndVerdict, int]) -> str | None:
    """Return a message if at least ``MIN_ALIKE`` rollouts all failed in the same unusual way, else None."""
    count = sum(outcomes.values())
    if count < MIN_ALIKE or any(verdict is Verdict.PASSED for _, verdict in outcomes):
        return None
    ways = {_way(outcome) for outcome in outcomes}
    if len(ways) != 1 or None in ways:
        return None
    return (
        f"all {count} rollouts ended alike ({ways.pop()}) and none was solved: the cause is probably a "
        "setting, the prompt or the machine"
    )


def busy_message(endings: Endings, load: MachineLoad) -> str | None:
    """Return a message if the machine is busy and time limits ended rollouts, else None."""
    if not load.is_high or not endings.timed:
        return None
    return (
        f"the machine is busy ({load}) and time limits ended {endings.timed} of {endings.graded} rollouts: a "
        "free machine may solve more"
    )


def _way(outcome: EndingAndVerdict) -> str | None:
    """Return a rollout's unusual ending; None for a submission that was tested."""
    termination, verdict = outcome
    if termination is not TerminationReason.SUBMITTED:
        return termination.words
    return None if verdict is None or verdict in _ORDINARY else verdict.replace("_", " ")
