"""Attempts: claiming a run for a launch or a relaunch, and giving up on one.

Every attempt has a number, the epoch. Raising it fences older processes that may still run: their events
and heartbeats are refused from then on.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import F, Max, Model
from django.utils import timezone

from engine.errors import TrainyardError
from engine.redaction import redact
from engine.types import RunState, TerminationReason
from webapp.core.services import audit, notifications
from webapp.datasets.models.health import Validation
from webapp.notifications.services import outbox
from webapp.rollouts.models.regrades import Regrade
from webapp.rollouts.models.scores import ExaminedTest, Score
from webapp.rollouts.models.trajectories import Trajectory
from webapp.runs.kinds import kind_of
from webapp.runs.models.alerts import Alert
from webapp.runs.models.iterations import Checkpoint, Evaluation, Iteration
from webapp.runs.models.runs import Run, RunAttempt
from webapp.runs.services import queue, states

MAX_ATTEMPTS = 5
"""Lost attempts in a row, without progress, after which the run fails."""
MAX_OUT_OF_MEMORY = 2
"""Out-of-memory attempts in a row, without progress, after which the run fails: the next would, too."""


class NoTokenError(TrainyardError):
    """No other program may post the events of the run."""


class SupersededError(Exception):
    """The attempt was replaced or stopped before its process was started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Exclusive right to start one attempt, with the data needed to do so."""

    run_id: int
    epoch: int
    token: str
    config: dict[str, Any]
    acked_seq: int = 0
    """Sequence number of the run's last stored event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedToken:
    """Credentials of a program that executes a run of the launcher ``external``."""

    token: str
    epoch: int
    """Attempt number, part of every event and heartbeat."""
    acked_seq: int
    """Sequence number of the run's last stored event; the next one has the number after it."""
    url: str
    """Address of the run's routes ``events`` and ``heartbeat``."""


@transaction.atomic
def issue_token(*, run: Run, actor: User | None = None) -> IssuedToken:
    """Return a new ingest token of a live run that another program executes; the last one is refused then.

    If the program has begun, the token is that of a new attempt, which begins with ``run_started`` again.

    Raises NoTokenError: the run has another launcher, or is not live.
    """
    if run.launcher_backend != "external":
        raise NoTokenError("another program can execute a run with launcher.backend=external only")
    run = Run.objects.select_for_update().get(pk=run.pk)
    if run.state not in states.LIVE:
        raise NoTokenError(f"run {run.pk} is {run.state}: start it, and ask again once it is starting")
    if run.state == RunState.STARTING:
        token = secrets.token_urlsafe(32)
        RunAttempt.objects.filter(run=run, epoch=run.epoch).update(token_hash=token_hash(token))
    else:
        claim = claim_relaunch(run_id=run.pk, epoch=run.epoch, reason="a new token was issued")
        if claim is None:
            raise NoTokenError(f"run {run.pk} is {run.state}: it takes no new program")
        record_process(run_id=run.pk, epoch=claim.epoch, host="", handle="external", run_dir=run.run_dir)
        token = claim.token
        run.refresh_from_db()
    audit.record(actor=actor, action="run.token", run_id=run.pk, changes={"attempt": run.epoch})
    address = settings.PUBLIC_URL or settings.TRAINYARD_WEB_URL
    return IssuedToken(
        token=token, epoch=run.epoch, acked_seq=run.last_seq, url=f"{address}/api/v1/runs/{run.pk}"
    )


@transaction.atomic
def claim_launch(*, run_id: int, host: str = "") -> Claim | None:
    """Claim a queued run for launching on a machine.

    Returns:
        The claim; None if the run was claimed elsewhere, is no longer queued, or must wait. Its progress
        message is the reason for the wait.
    """
    run = Run.objects.filter(pk=run_id, state=RunState.QUEUED).first()
    if run is None:
        return None
    if waiting := queue.why_waiting(run=run, host=host):
        if Run.objects.filter(pk=run_id).exclude(progress_message=waiting).update(progress_message=waiting):
            notifications.run_changed(run_id, run.last_seq)
        return None
    if not states.move(run_id=run_id, to=RunState.STARTING, only_from=RunState.QUEUED):
        return None
    return _new_attempt(run_id, "launched")


@transaction.atomic
def claim_relaunch(
    *, run_id: int, epoch: int, reason: str, detail: str = "", out_of_memory: bool = False
) -> Claim | None:
    """Claim the replacement of the lost attempt ``epoch``; None if it was replaced or the run has ended.

    Args:
        run_id, epoch: the lost attempt.
        reason: reason for the loss, in words.
        detail: the last line of its log, where no other reason is known.
        out_of_memory: whether it was killed because memory ran out.
    """
    run = Run.objects.select_for_update().get(pk=run_id)
    if run.epoch != epoch or not states.move(run_id=run_id, to=RunState.STARTING):
        return None
    reason, detail = redact(reason), redact(detail)
    RunAttempt.objects.filter(run_id=run_id, ended_at=None).update(
        ended_at=timezone.now(), reason=reason, reason_detail=detail, out_of_memory=out_of_memory
    )
    alert = Alert.objects.create(
        run=run, severity="warning", code="run.relaunched", time=timezone.now(), detail=detail,
        message=f"Attempt {epoch} was lost: {reason}. Attempt {epoch + 1} {_continuation(run)}.",
    )  # fmt: skip
    outbox.alerts_raised(run=run, alerts=[alert])
    audit.record(
        actor=None, action="run.relaunch", run_id=run_id, changes={"reason": reason, "detail": detail}
    )
    return _new_attempt(run_id, reason, detail)


def _continuation(run: Run) -> str:
    """Describe how a new attempt uses the stored results of earlier ones, as a predicate."""
    checkpoint = Checkpoint.objects.filter(run=run).order_by("-iteration").first()
    if checkpoint is not None:
        return f"goes on from the checkpoint after iteration {checkpoint.iteration}"
    if kind_of(run.kind).makes_dataset:
        return "takes its place"  # earlier results are in the data folder
    finished = Trajectory.objects.filter(run=run, state=Trajectory.State.FINISHED)
    kept = finished.filter(reward__isnull=False).exists() and _keeps_rollouts(run)
    results: tuple[type[Model], ...] = (Validation, Score, ExaminedTest, Regrade)
    kept = kept or any(model._default_manager.filter(run=run).exists() for model in results)
    return "keeps what it had finished" if kept else "starts over: it had saved nothing"


def _keeps_rollouts(run: Run) -> bool:
    """Return whether attempts of a run without a checkpoint keep the rollouts of earlier ones."""
    if not kind_of(run.kind).trains_by_iteration:
        return True
    config = run.config
    replays = config.get("rollout", {}).get("resume_in_flight") == "replay"
    return bool(replays or config.get("schedule", {}).get("mode", "sync") != "sync")


def _new_attempt(run_id: int, reason: str, detail: str = "") -> Claim:
    token = secrets.token_urlsafe(32)
    Run.objects.filter(pk=run_id).update(epoch=F("epoch") + 1, heartbeat_at=None)
    run = Run.objects.get(pk=run_id)
    RunAttempt.objects.create(
        run=run,
        epoch=run.epoch,
        launcher=run.launcher_backend,
        reason=reason,
        reason_detail=detail,
        token_hash=token_hash(token),
    )
    notifications.run_changed(run_id, run.last_seq)
    return Claim(run_id=run_id, epoch=run.epoch, token=token, config=run.config, acked_seq=run.last_seq)


def record_process(*, run_id: int, epoch: int, host: str, handle: str, run_dir: str) -> None:
    """Record the process of an attempt; this counts as a heartbeat."""
    RunAttempt.objects.filter(run_id=run_id, epoch=epoch).update(host=host, handle=handle)
    Run.objects.filter(pk=run_id, epoch=epoch).update(run_dir=run_dir, heartbeat_at=timezone.now())


def note_condition(*, run_id: int, epoch: int, condition: str) -> None:
    """Store the launcher's report about an attempt's process and notify pages; no effect if unchanged."""
    condition = redact(condition)[:2000]
    attempt = RunAttempt.objects.filter(run_id=run_id, epoch=epoch, ended_at=None)
    if attempt.exclude(condition=condition).update(condition=condition):
        notifications.run_changed(run_id, Run.objects.values_list("last_seq", flat=True).get(pk=run_id))


def why_not_again(*, run: Run, out_of_memory: bool) -> str:
    """Return the reason not to relaunch a run whose newest attempt is lost; empty if it is relaunched.

    Only attempts since the last progress, or since a person queued the run, count. Progress is a finished
    iteration or evaluation, a stored validation, score or examined test or, in runs that do not train, a
    finished rollout.

    Args:
        run: the run.
        out_of_memory: whether its newest attempt was killed because memory ran out.
    """
    lost = RunAttempt.objects.filter(run=run, ended_at__gt=_last_progress(run))
    if out_of_memory and lost.filter(out_of_memory=True).count() + 1 >= MAX_OUT_OF_MEMORY:
        return f"{MAX_OUT_OF_MEMORY} times at the same place"
    if lost.count() + 1 >= MAX_ATTEMPTS:
        return f"{MAX_ATTEMPTS} attempts in a row did not get further"
    return ""


def _last_progress(run: Run) -> datetime:
    results: list[tuple[type[Model], str]] = [
        (Iteration, "finished_at"), (Evaluation, "finished_at"), (Validation, "time"), (Score, "time"),
        (ExaminedTest, "time"), (Regrade, "time"),
    ]  # fmt: skip
    sources = [(model._default_manager.filter(run=run), column) for model, column in results]
    if not kind_of(run.kind).trains_by_iteration:
        rollouts = Trajectory.objects.filter(run=run).exclude(termination=TerminationReason.CANCELLED.value)
        sources.append((rollouts, "finished_at"))
    times: list[datetime | None] = [rows.aggregate(last=Max(column))["last"] for rows, column in sources]
    return max(time for time in (run.queued_at or run.created_at, *times) if time is not None)


def preparing(*, run_id: int, epoch: int) -> None:
    """Record that a worker still prepares the start of an attempt.

    Raises:
        SupersededError: a newer attempt replaced it, or the run was stopped.
    """
    starting = Run.objects.filter(pk=run_id, epoch=epoch, state=RunState.STARTING)
    if not starting.update(heartbeat_at=timezone.now()):
        raise SupersededError(
            f"attempt {epoch} of run {run_id} was replaced or stopped while it was prepared"
        )


@transaction.atomic
def end_unstarted(*, run_id: int, epoch: int) -> bool:
    """End a run that is stopping before this attempt's process was started; return whether this call did."""
    run = Run.objects.select_for_update().get(pk=run_id)
    if (run.epoch, run.state) != (epoch, RunState.STOPPING):
        return False
    return give_up(run_id=run_id, epoch=epoch, to=RunState.STOPPED, reason="stopped")


@transaction.atomic
def give_up(*, run_id: int, epoch: int, to: RunState, reason: str, detail: str = "") -> bool:
    """End and fence a run whose process is gone; return whether this call ended it.

    A run with a newer attempt is left alone: the caller only knows that the older one is gone.

    Args:
        run_id, epoch: the run and the attempt that is given up.
        to: the final state.
        reason: reason for the end, in words.
        detail: the last line of its log, where no other reason is known.
    """
    reason, detail = redact(reason), redact(detail)
    run = Run.objects.select_for_update().get(pk=run_id)
    if run.epoch != epoch or not states.move(run_id=run_id, to=to, reason=reason, reason_detail=detail):
        return False
    Run.objects.filter(pk=run_id).update(epoch=F("epoch") + 1)
    if to == RunState.FAILED:
        alert = Alert.objects.create(
            run=run, severity="error", code="run.failed", time=timezone.now(), message=reason, detail=detail
        )
        run.refresh_from_db()
        outbox.alerts_raised(run=run, alerts=[alert], ended=to)
    audit.record(
        actor=None, action=f"run.{to.value}", run_id=run_id, changes={"reason": reason, "detail": detail}
    )
    notifications.run_changed(run_id, run.last_seq)
    return True


def nudged(*, run_id: int) -> None:
    """Record that a task was sent again for this run."""
    Run.objects.filter(pk=run_id).update(nudged_at=timezone.now())


def token_hash(token: str) -> str:
    """Return the hash under which an ingest token is stored."""
    return hashlib.sha256(token.encode()).hexdigest()
