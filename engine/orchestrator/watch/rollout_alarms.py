"""Alarms about outcomes that say more about limits and the machine than about the policy.

Training examines them per iteration (``alarms``); collections and evaluations, which keep counts only, while
they run and at their end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from engine.evaluation.endings import Endings
from engine.orchestrator.context import RunContext
from engine.orchestrator.watch.machine import MachineLoad, MachineProbe
from engine.orchestrator.watch.metrics import Outcome, RolloutMetrics, loss_reason
from engine.rollout.summary import RolloutSummary
from engine.types import TerminationReason, Verdict

INFRA_RATE_MAX = 0.02
TIMED_SHARE_MAX = 0.1
LIMITED_SHARE_MAX = 0.5
MIN_ALIKE = 8
"""Number of rollouts below which equal endings are no pattern."""
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
        """Examine what has finished.

        Args:
            metrics: of the finished rollouts, with or without the lost ones.
            lost: rollouts lost to infrastructure.
            ended: whether all have finished; before, few rollouts raise nothing.
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
    """Return the share of lost rollouts with their reasons; None below the limit."""
    if rate <= INFRA_RATE_MAX:
        return None
    reasons = Counter(map(loss_reason, lost))
    why = ", ".join(f"{count} × {reason}" for reason, count in reasons.most_common())
    return f"infrastructure lost {rate:.1%} of the rollouts ({why})"


def unreadable_message(metrics: Mapping[str, float]) -> str | None:
    """Return that no response had a readable tool call; None where one had."""
    if metrics.get("steps/unparsed", 0.0) < 1.0:
        return None
    return (
        "no response had a readable tool call: check agent.tool_format, agent.prompt and the model, or start "
        "from a checkpoint that can call tools"
    )


def limits_message(endings: Endings, load: MachineLoad) -> str | None:
    """Return which limits ended rollouts; None where they ended few."""
    graded, limited, timed = endings.graded, endings.limited, endings.timed
    if not graded or (timed <= TIMED_SHARE_MAX * graded and limited <= LIMITED_SHARE_MAX * graded):
        return None
    kinds = ", ".join(f"{count} × {reason.words}" for reason, count in endings.limits.items())
    message = f"limits ended {limited} of {graded} rollouts ({kinds})"
    if timed <= TIMED_SHARE_MAX * graded:
        return f"{message}: their solve rate is that of the limits as much as of the policy"
    return (
        f"{message}: with more time some may be solved, so their solve rate is not the policy's; free the "
        f"machine ({load}), lower rollout.max_concurrent, or raise the time limits"
    )


def alike_message(outcomes: Mapping[Outcome, int]) -> str | None:
    """Return how all rollouts failed, where all of at least ``MIN_ALIKE`` failed in one unusual way."""
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
    """Return that a busy machine may have ended rollouts; None where it is free or time limits ended none."""
    if not load.is_high or not endings.timed:
        return None
    return (
        f"the machine is busy ({load}) and time limits ended {endings.timed} of {endings.graded} rollouts: a "
        "free machine may solve more"
    )


def _way(outcome: Outcome) -> str | None:
    """Return a rollout's unusual ending; None for a submission that was tested."""
    termination, verdict = outcome
    if termination is not TerminationReason.SUBMITTED:
        return termination.words
    return None if verdict is None or verdict in _ORDINARY else verdict.replace("_", " ")
