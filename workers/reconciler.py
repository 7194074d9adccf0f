"""Periodic reconciliation of runs and their processes.

    queued, not claimed          send the launch task again
    process gone                 store the rest of its spool; unless the run finished in it,
                                 start the next attempt from the last checkpoint
    process silent, elsewhere    the same, under a higher epoch that fences it
    process silent, here         wait while it writes its spool (the web server may be down), then kill it
    job waits for a cluster      wait, and show it on the run's page
    cluster does not answer      the same: nothing could be started there
    cluster has no such job      wait for signs of life of a process that outlived the cluster's head, then
                                 the same as for a process that is gone
    another program silent       fail the run after a day
    stopping and silent, or      kill it
    stopping for too long
    too many attempts lost       fail the run with the reason
    without progress
    being deleted, no task       send the deletion task again

Every action is claimed by a conditional update, so reconcilers on several workers do no harm.
"""

from __future__ import annotations

import logging
import time
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory

from django.db import DatabaseError
from django.utils import timezone

from engine.errors import TrainyardError
from engine.types import RunState
from webapp.core.dispatch import TaskName, send
from webapp.ingestion.services import ingest
from webapp.runs.models.runs import Run, RunAttempt
from webapp.runs.selectors.folders import run_folder
from webapp.runs.services import attempts, deletion, states
from workers import lifecycle, rundir, stores
from workers.launchers import LAUNCHERS
from workers.launchers.base import ProcessReport, ProcessState

log = logging.getLogger(__name__)

RESEND_AFTER = timedelta(seconds=10)
HUNG_AFTER = timedelta(minutes=5)
"""Time without heartbeat or output after which a process of this machine counts as hung."""
CLAIM_GRACE = timedelta(seconds=15)
"""Time without a recorded process or a sign of life after which the claiming worker counts as dead."""
MISSING_GRACE = timedelta(seconds=30)
"""Time without a sign of life after which a job that the cluster does not have counts as lost; longer than a
submission takes, and longer than fencing a process takes."""
STOPPING_GRACE = timedelta(seconds=7)
"""Time without a sign of life after which the process of a stopping run is killed. A process with signs of
life has the state's timeout for its last events and the removal of its sandboxes."""
DISCONNECTED_AFTER = timedelta(days=1)
"""Time without a response of its cluster and without a sign of life after which a run fails."""
EXTERNAL_AFTER = timedelta(days=1)
"""Time without a sign of life of another program after which its run fails."""
EXTERNAL_STOP = timedelta(minutes=5)
"""Time for another program to learn by its heartbeat that it must stop, and to send its last events."""

_NOT_STARTED_OR_ENDED = (ProcessState.DEAD, ProcessState.PENDING)


class Decision(StrEnum):
    """Action to take for one run."""

    WAIT = "wait"
    RESEND = "resend"
    EXPIRE = "expire"
    """The state's timeout passed while no process ran: move the run to the timeout's target state."""
    RECOVER = "recover"
    """The process is dead or hung: store its last events, then resume or end the run."""


def decide(
    *,
    state: RunState,
    process: ProcessState | None,
    silent: timedelta,
    in_state: timedelta,
    nudged: timedelta | None,
    waits: bool = False,
) -> Decision:
    """Decide on the action for a run, without side effects.

    Args:
        state: the run's state.
        process: state of its newest attempt's process; None if no process was recorded.
        silent: time since the last sign of life (a heartbeat of the process or of the worker that prepares
            it, an event, or a write to the spool of a local process).
        in_state: time since the run entered its state.
        nudged: time since a launch task was last sent again; None if it never was.
        waits: whether a worker has reported that the queued run has to wait for a free place.
    """
    timeout = states.TIMEOUTS.get(state)
    if timeout is None:
        return Decision.WAIT
    if state not in states.LIVE:
        if in_state > timeout.after and not waits:
            return Decision.EXPIRE
        due = state is RunState.QUEUED and min(in_state, nudged or in_state) > RESEND_AFTER
        return Decision.RESEND if due else Decision.WAIT
    if state is RunState.STOPPING:
        if process is ProcessState.EXTERNAL:
            return Decision.RECOVER if in_state > EXTERNAL_STOP else Decision.WAIT
        over = process in _NOT_STARTED_OR_ENDED or silent > STOPPING_GRACE or in_state > timeout.after
        return Decision.RECOVER if over else Decision.WAIT
    if process is None:
        over = in_state > CLAIM_GRACE and silent >= CLAIM_GRACE
        return Decision.RECOVER if over else Decision.WAIT
    patience = {
        ProcessState.DEAD: timedelta(0),
        ProcessState.UNREACHABLE: timeout.after,
        ProcessState.ALIVE: HUNG_AFTER,
        ProcessState.PENDING: states.TIMEOUTS[RunState.QUEUED].after,
        ProcessState.DISCONNECTED: DISCONNECTED_AFTER,
        ProcessState.MISSING: MISSING_GRACE,
        ProcessState.EXTERNAL: EXTERNAL_AFTER,
    }[process]
    return Decision.RECOVER if silent >= patience else Decision.WAIT


def reconcile() -> None:
    """Reconcile every run that has not ended, and deletions; a failure for one run affects no other."""
    waiting = [state.value for state in states.TIMEOUTS]
    for run in Run.objects.filter(state__in=waiting).defer("config", "summary", "funnel").order_by("pk"):
        try:
            _reconcile_run(run)
        except (TrainyardError, OSError, DatabaseError) as error:
            log.exception("run %d could not be reconciled: %s", run.pk, error)
    deletion.resend()


def _reconcile_run(run: Run) -> None:
    now = timezone.now()
    attempt = RunAttempt.objects.filter(run=run, epoch=run.epoch).first()
    report = None
    if attempt is not None and attempt.handle:
        report = LAUNCHERS[attempt.launcher].poll(host=attempt.host, handle=attempt.handle)
        if report.state is not ProcessState.DEAD:
            attempts.note_condition(run_id=run.pk, epoch=attempt.epoch, condition=report.message)
    process = report.state if report is not None else None
    decision = decide(
        state=RunState(run.state),
        process=process,
        silent=now - _last_sign(run, local=process is ProcessState.ALIVE),
        in_state=now - run.state_changed_at,
        nudged=now - run.nudged_at if run.nudged_at is not None else None,
        waits=run.state == RunState.QUEUED and bool(run.progress_message),
    )
    if decision is Decision.RESEND:
        attempts.nudged(run_id=run.pk)
        send(TaskName.LAUNCH_RUN, run.pk)
    elif decision is Decision.EXPIRE:
        timeout = states.TIMEOUTS[RunState(run.state)]
        attempts.give_up(run_id=run.pk, epoch=run.epoch, to=timeout.to, reason=timeout.reason)
    elif decision is Decision.RECOVER:
        _recover(run, attempt, report)


def _last_sign(run: Run, *, local: bool) -> datetime:
    signs = [run.state_changed_at]
    if run.heartbeat_at is not None:
        signs.append(run.heartbeat_at)
    if local:
        written = rundir.spool_written_at(run.pk)
        signs.append(datetime.fromtimestamp(written, tz=signs[0].tzinfo))
    return max(signs)


def _recover(run: Run, attempt: RunAttempt | None, report: ProcessReport | None) -> None:
    epoch, process = run.epoch, report.state if report is not None else None
    if attempt is not None and process in (ProcessState.ALIVE, ProcessState.PENDING):
        _kill(attempt)
    _take_last_events(run)
    run.refresh_from_db()
    if run.epoch != epoch or run.state in states.TERMINAL:
        return  # the events ended the run, or another reconciler replaced the attempt meanwhile
    if run.state == RunState.STOPPING:
        graceful = process in _NOT_STARTED_OR_ENDED
        reason = "stopped" if graceful else states.TIMEOUTS[RunState.STOPPING].reason
        attempts.give_up(run_id=run.pk, epoch=epoch, to=RunState.STOPPED, reason=reason)
        return
    why, detail = _why(run, report)
    if process in (ProcessState.DISCONNECTED, ProcessState.EXTERNAL):
        attempts.give_up(run_id=run.pk, epoch=epoch, to=RunState.FAILED, reason=why, detail=detail)
        return
    out_of_memory = report is not None and report.out_of_memory
    if why_not := attempts.why_not_again(run=run, out_of_memory=out_of_memory):
        reason = f"{why}; {why_not}"
        attempts.give_up(run_id=run.pk, epoch=epoch, to=RunState.FAILED, reason=reason, detail=detail)
        return
    claim = attempts.claim_relaunch(
        run_id=run.pk, epoch=epoch, reason=why, detail=detail, out_of_memory=out_of_memory
    )
    if claim is not None:
        lifecycle.start(claim)


def _kill(attempt: RunAttempt) -> None:
    """Kill a process and wait until it no longer writes its spool."""
    launcher = LAUNCHERS[attempt.launcher]
    launcher.kill(host=attempt.host, handle=attempt.handle)
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        report = launcher.poll(host=attempt.host, handle=attempt.handle)
        if report.state is not ProcessState.ALIVE:
            return
        time.sleep(0.05)


def _take_last_events(run: Run) -> None:
    """Store undelivered events from the run folder and from its copy in an object store."""
    _take_events(run, run_folder(run.pk) / rundir.SPOOL)
    if url := run.config.get("storage", {}).get("url"):
        with TemporaryDirectory() as folder:
            path = Path(folder) / rundir.SPOOL
            if problem := stores.fetch_spool(url, run.pk, path):
                log.warning("run %d: its events in the store cannot be read: %s", run.pk, problem)
            _take_events(run, path)


def _take_events(run: Run, path: Path) -> None:
    """Store the events of a spool file; the error of a malformed file is logged, not raised."""
    if not path.exists():
        return
    try:
        ingest.ingest_spool(run_id=run.pk, path=path)
    except (ingest.MalformedError, ingest.GapError, ingest.StaleEpochError) as error:
        log.warning("run %d: the rest of its spool cannot be stored: %s", run.pk, error)


def _why(run: Run, report: ProcessReport | None) -> tuple[str, str]:
    """Return the reason why an attempt is lost, and the last line of its log if the reason is unknown."""
    if report is None:
        return "no process was started", ""
    if report.state in (ProcessState.MISSING, ProcessState.DISCONNECTED):
        return report.message, ""
    if report.state is ProcessState.EXTERNAL:
        return "the program that runs it sent nothing for a day", ""
    if report.state is ProcessState.DEAD:
        unexpected = "its process ended unexpectedly"
        if report.out_of_memory:
            return f"{unexpected}: the kernel killed it, or a process of it, for its memory", ""
        if report.message:
            return f"{unexpected}: {report.message}", ""
        return unexpected, rundir.last_words(run.pk)
    return states.TIMEOUTS[RunState(run.state)].reason, ""
