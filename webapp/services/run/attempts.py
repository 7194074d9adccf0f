"""Attempts: claiming a run for a launch or a relaunch, and giving up on one.

Every attempt has a number, the epoch. Raising it fences whatever older process may still live:
its events and heartbeats are refused from then on.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from engine.redaction import redact
from engine.types import RunState
from webapp.models import Alert, Run, RunAttempt
from webapp.services import notifications
from webapp.services.access import audit
from webapp.services.run import states

MAX_ATTEMPTS = 5
ATTEMPTS_WITHIN = timedelta(minutes=10)
"""Period over which attempts are counted; a run with too many is not relaunched."""


class SupersededError(Exception):
    """An attempt whose process was not started yet was replaced by a newer one, or stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Exclusive right to start one attempt, with the data needed to do so."""

    run_id: int
    epoch: int
    token: str
    config: dict[str, Any]
    acked_seq: int = 0
    """Last event of the run that is stored."""


@transaction.atomic
def claim_launch(*, run_id: int) -> Claim | None:
    """Claim a queued run for launching; None if it was claimed elsewhere or is no longer queued."""
    if not states.move(run_id=run_id, to=RunState.STARTING, only_from=RunState.QUEUED):
        return None
    return _new_attempt(run_id, "launched")


@transaction.atomic
def claim_relaunch(*, run_id: int, epoch: int, reason: str, detail: str = "") -> Claim | None:
    """Claim the replacement of the lost attempt ``epoch``; None if it was replaced or the run has ended.

    Args:
        run_id, epoch: the lost attempt.
        reason: why it was lost, in words.
        detail: the last line of its log, where nothing else tells why.
    """
    run = Run.objects.select_for_update().get(pk=run_id)
    if run.epoch != epoch or not states.move(run_id=run_id, to=RunState.STARTING):
        return None
    reason, detail = redact(reason), redact(detail)
    _end(run_id, reason, detail)
    Alert.objects.create(
        run=run, severity="warning", code="run.relaunched", time=timezone.now(), detail=detail,
        message=f"Attempt {epoch} was lost: {reason}. Attempt {epoch + 1} goes on from what it saved.",
    )  # fmt: skip
    audit.record(
        actor=None, action="run.relaunch", run_id=run_id, changes={"reason": reason, "detail": detail}
    )
    return _new_attempt(run_id, reason, detail)


def _new_attempt(run_id: int, reason: str, detail: str = "") -> Claim:
    token = secrets.token_urlsafe(32)
    Run.objects.filter(pk=run_id).update(epoch=F("epoch") + 1, heartbeat_at=None)
    run = Run.objects.get(pk=run_id)
    RunAttempt.objects.create(
        run=run,
        epoch=run.epoch,
        launcher=run.config.get("launcher", {}).get("backend", "local"),
        reason=reason,
        reason_detail=detail,
        token_hash=token_hash(token),
    )
    notifications.run_changed(run_id, run.last_seq)
    return Claim(run_id=run_id, epoch=run.epoch, token=token, config=run.config, acked_seq=run.last_seq)


def record_process(*, run_id: int, epoch: int, host: str, handle: str, run_dir: str) -> None:
    """Record the process of an attempt; the worker that does so is a sign of life."""
    RunAttempt.objects.filter(run_id=run_id, epoch=epoch).update(host=host, handle=handle)
    Run.objects.filter(pk=run_id, epoch=epoch).update(run_dir=run_dir, heartbeat_at=timezone.now())


def note_condition(*, run_id: int, epoch: int, condition: str) -> None:
    """Store what the launcher reports about an attempt's process and notify pages; no effect if known."""
    condition = redact(condition)[:2000]
    attempt = RunAttempt.objects.filter(run_id=run_id, epoch=epoch, ended_at=None)
    if attempt.exclude(condition=condition).update(condition=condition):
        notifications.run_changed(run_id, Run.objects.values_list("last_seq", flat=True).get(pk=run_id))


def too_many(*, run_id: int) -> bool:
    """Return whether ``MAX_ATTEMPTS`` were made within ``ATTEMPTS_WITHIN``."""
    since = timezone.now() - ATTEMPTS_WITHIN
    return RunAttempt.objects.filter(run_id=run_id, created_at__gt=since).count() >= MAX_ATTEMPTS


def preparing(*, run_id: int, epoch: int) -> None:
    """Record that a worker still prepares the start of an attempt.

    Raises:
        SupersededError: a newer attempt took its place, or the run is no longer to be started.
    """
    starting = Run.objects.filter(pk=run_id, epoch=epoch, state=RunState.STARTING)
    if not starting.update(heartbeat_at=timezone.now()):
        raise SupersededError(
            f"attempt {epoch} of run {run_id} was replaced or stopped while it was prepared"
        )


@transaction.atomic
def end_unstarted(*, run_id: int, epoch: int) -> bool:
    """End a run that was asked to stop before this attempt's process was started; return whether it was."""
    run = Run.objects.select_for_update().get(pk=run_id)
    if (run.epoch, run.state) != (epoch, RunState.STOPPING):
        return False
    return give_up(run_id=run_id, epoch=epoch, to=RunState.STOPPED, reason="stopped")


@transaction.atomic
def give_up(*, run_id: int, epoch: int, to: RunState, reason: str, detail: str = "") -> bool:
    """End and fence a run whose process is gone; return whether this call ended it.

    Nothing happens to a run with a newer attempt: whoever calls knows only of the older one.

    Args:
        run_id, epoch: the run and the attempt that is given up.
        to: the state it ends in.
        reason: why, in words.
        detail: the last line of its log, where nothing else tells why.
    """
    reason, detail = redact(reason), redact(detail)
    run = Run.objects.select_for_update().get(pk=run_id)
    if run.epoch != epoch or not states.move(run_id=run_id, to=to, reason=reason, reason_detail=detail):
        return False
    Run.objects.filter(pk=run_id).update(epoch=F("epoch") + 1)
    if to == RunState.FAILED:
        Alert.objects.create(
            run=run, severity="error", code="run.failed", time=timezone.now(), message=reason, detail=detail
        )
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


def _end(run_id: int, reason: str, detail: str) -> None:
    RunAttempt.objects.filter(run_id=run_id, ended_at=None).update(
        ended_at=timezone.now(), reason=reason, reason_detail=detail
    )
