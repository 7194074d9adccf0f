"""Deletion of archived runs by a worker, in short transactions: a run may have millions of rows.

Files of the run remain: other runs may train from its checkpoints.
"""

from __future__ import annotations

import math
import time
from datetime import timedelta

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from webapp.core.dispatch import TaskName, send, send_on_commit
from webapp.core.services import audit, notifications
from webapp.rollouts.services import removal
from webapp.runs.models.runs import Run
from webapp.runs.services import attempts
from webapp.runs.services.edits import ARCHIVABLE
from webapp.runs.services.states import IllegalTransitionError

TASK_S = 2.0
"""Time after which a task begins no further transaction, seconds."""
RESEND_AFTER = timedelta(minutes=5)
"""Time without a task after which the task of a deletion counts as lost; longer than a queue should be."""


@transaction.atomic
def request(*, run: Run, actor: User | None = None) -> None:
    """Begin to delete a run with all its rows; it can be neither restored nor resumed from then on.

    Raises:
        IllegalTransitionError: it is not archived; an ended run can be.
    """
    row = Run.objects.select_for_update(of=("self",)).get(pk=run.pk)
    if row.archived_at is None or row.state not in ARCHIVABLE:
        raise IllegalTransitionError(row.pk, f"{row.state} and not archived", "deleted: archive it first")
    if row.deleting_at is None:
        row.deleting_at = timezone.now()
        row.save(update_fields=["deleting_at"])
        notifications.run_changed(row.pk, row.last_seq)
    audit.record(actor=actor, action="run.delete", target=f"run {row.pk} {row.name}")
    send_on_commit(TaskName.DELETE_RUN, row.pk)


def delete(*, run_id: int, seconds: float = math.inf) -> bool:
    """Delete rows of a run whose deletion was requested, then the run.

    Args:
        run_id: the run.
        seconds: time after which no further transaction begins.

    Returns:
        Whether rows are left to delete.
    """
    until = time.monotonic() + seconds
    while _delete_part(run_id):
        if time.monotonic() > until:
            return True
    return False


def sweep(*, run_id: int) -> None:
    """Delete for a few seconds, and send the task that continues."""
    attempts.nudged(run_id=run_id)
    if delete(run_id=run_id, seconds=TASK_S):
        send(TaskName.DELETE_RUN, run_id)


def resend() -> None:
    """Send the tasks of deletions again that were lost."""
    before = timezone.now() - RESEND_AFTER
    lost = Run.objects.filter(Q(nudged_at=None) | Q(nudged_at__lt=before), deleting_at__lt=before)
    for run_id in lost.values_list("pk", flat=True):
        attempts.nudged(run_id=run_id)
        send(TaskName.DELETE_RUN, run_id)


@transaction.atomic
def _delete_part(run_id: int) -> bool:
    """Delete some rows, or the run if it has no more; return whether there may be more."""
    run = Run.objects.select_for_update(of=("self",)).filter(pk=run_id).first()
    if run is None or run.deleting_at is None:
        return False
    if removal.remove_part(run_id=run_id):
        return True
    run.delete()
    notifications.run_changed(run_id, run.last_seq)
    return False
