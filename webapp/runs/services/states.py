"""The state machine of a run: the only writer of ``Run.state``.

    draft ─▶ queued ─▶ starting ─▶ running ⇄ paused
      │        │          │  ▲        │        │
      │        │          │  └────────┴────────┘   relaunch under a higher epoch
      ▼        ▼          ▼           ▼
    stopped  stopped   stopping ─▶ stopped | succeeded | failed      (failed, stopped) ─▶ queued: resume
                                                                  succeeded ─▶ queued: retry missing results

Moves are conditional updates: the first caller that finds the run in an allowed state wins, the others
get ``False``. ``TIMEOUTS`` ends every non-terminal state eventually (workers.reconciler).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import Case, F, Value, When
from django.db.models.functions import Coalesce
from django.utils import timezone

from engine.errors import TrainyardError
from engine.types import RunState, TerminationReason
from webapp.notifications.services import outbox
from webapp.rollouts.models.trajectories import Trajectory
from webapp.runs.models.runs import Run, RunAttempt
from webapp.sandboxes.models import Pool, Sandbox

S = RunState
TERMINAL = frozenset({S.SUCCEEDED, S.FAILED, S.STOPPED})
LIVE = frozenset({S.STARTING, S.RUNNING, S.PAUSED, S.STOPPING})
"""States in which a process should exist."""
STOPPABLE = frozenset({S.DRAFT, S.QUEUED, S.STARTING, S.RUNNING, S.PAUSED})
"""States in which a person can ask a run to stop."""
IN_PROGRESS = STOPPABLE - {S.DRAFT}
"""States of the runs that are stopped with their experiment."""

TRANSITIONS: dict[RunState, frozenset[RunState]] = {
    S.DRAFT: frozenset({S.QUEUED, S.STOPPED}),
    S.QUEUED: frozenset({S.STARTING, S.STOPPED, S.FAILED}),
    S.STARTING: frozenset({S.STARTING, S.RUNNING, S.STOPPING, S.SUCCEEDED, S.FAILED, S.STOPPED}),
    S.RUNNING: frozenset({S.STARTING, S.PAUSED, S.STOPPING, S.SUCCEEDED, S.FAILED, S.STOPPED}),
    S.PAUSED: frozenset({S.STARTING, S.RUNNING, S.STOPPING, S.SUCCEEDED, S.FAILED, S.STOPPED}),
    S.STOPPING: frozenset({S.SUCCEEDED, S.FAILED, S.STOPPED}),
    S.SUCCEEDED: frozenset({S.QUEUED}),
    S.FAILED: frozenset({S.QUEUED}),
    S.STOPPED: frozenset({S.QUEUED}),
}
_SET_ONCE = {S.RUNNING: "running_at"}
_SET_ALWAYS = {
    S.QUEUED: "queued_at",
    S.STARTING: "starting_at",
    S.PAUSED: "paused_at",
    S.STOPPING: "stopping_at",
    S.SUCCEEDED: "finished_at",
    S.FAILED: "finished_at",
    S.STOPPED: "finished_at",
}


@dataclass(frozen=True, slots=True)
class Timeout:
    """Timeout of a state: after ``after`` without the expected sign of life the run moves to ``to``."""

    after: timedelta
    to: RunState
    reason: str


TIMEOUTS: dict[RunState, Timeout] = {
    S.DRAFT: Timeout(timedelta(days=30), S.STOPPED, "never started within 30 days"),
    S.QUEUED: Timeout(timedelta(days=7), S.FAILED, "no worker picked it up within 7 days"),
    S.STARTING: Timeout(timedelta(seconds=90), S.FAILED, "its process did not report within 90 s"),
    S.RUNNING: Timeout(timedelta(seconds=15), S.FAILED, "its process fell silent"),
    S.PAUSED: Timeout(timedelta(seconds=15), S.FAILED, "its process fell silent while paused"),
    S.STOPPING: Timeout(timedelta(seconds=30), S.STOPPED, "it did not stop in time and was ended"),
}
"""Timeouts by state; starting, running and paused runs are relaunched from the last checkpoint first."""


class IllegalTransitionError(TrainyardError):
    """The requested change is not allowed in the run's state."""

    def __init__(self, run_id: int, state: str, wanted: str) -> None:
        self.state = state
        super().__init__(f"run {run_id} is {state}: it cannot become {wanted}")


def allowed_from(to: RunState) -> list[str]:
    """Return the states from which a run may move to ``to``."""
    return [source.value for source, targets in TRANSITIONS.items() if to in targets]


def move(*, run_id: int, to: RunState, only_from: RunState | None = None, **fields: Any) -> bool:
    """Move a run if its state allows it, setting ``fields`` too; return whether this call moved it."""
    sources = allowed_from(to)
    if only_from is not None:
        sources = [state for state in sources if state == only_from]
    now = timezone.now()
    times: dict[str, Any] = {"state_changed_at": now}
    # A queued run's message is the reason for its wait; in other states it is the current phase.
    was_queued = When(state=S.QUEUED.value, then=Value(""))
    times["progress_message"] = "" if to is S.QUEUED else Case(was_queued, default=F("progress_message"))
    if to in _SET_ONCE:
        times[_SET_ONCE[to]] = Coalesce(F(_SET_ONCE[to]), now)
    if to in _SET_ALWAYS:
        times[_SET_ALWAYS[to]] = now
    with transaction.atomic(savepoint=False):
        movable = Run.objects.filter(pk=run_id, state__in=sources, deleting_at=None)
        moved = movable.update(state=to.value, **(times | fields))
        if moved and to in TERMINAL:
            close(run_id=run_id)
            outbox.run_ended(run_id=run_id, state=to)
    return bool(moved)


def require(*, run_id: int, to: RunState, only_from: RunState | None = None, **fields: Any) -> None:
    """Move a run like ``move``. Raises IllegalTransitionError if the run's state does not allow it."""
    if not move(run_id=run_id, to=to, only_from=only_from, **fields):
        raise refusal(run_id=run_id, wanted=to.value)


def refusal(*, run_id: int, wanted: str) -> IllegalTransitionError:
    """Return the error that a run's current state does not allow a change."""
    state, deleting_at = Run.objects.values_list("state", "deleting_at").get(pk=run_id)
    return IllegalTransitionError(run_id, state if deleting_at is None else "being deleted", wanted)


def close(*, run_id: int) -> None:
    """Close the attempts, trajectories, leases and pool of an ended run that are still open."""
    now = timezone.now()
    Run.objects.filter(pk=run_id).update(desired="run")
    RunAttempt.objects.filter(run_id=run_id, ended_at=None).update(ended_at=now)
    Trajectory.objects.filter(run_id=run_id, state=Trajectory.State.RUNNING).update(
        state=Trajectory.State.FINISHED,
        termination=TerminationReason.CANCELLED.value,
        error="the run ended before this rollout did",
        finished_at=F("active_at"),
    )
    Sandbox.objects.filter(run_id=run_id, state__in=Sandbox.OPEN).update(state=Sandbox.State.LOST)
    Pool.objects.filter(run_id=run_id).update(wanted=0, waiting=0, starting=0, live=0, idle=0)
