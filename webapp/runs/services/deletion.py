"""Deletion of archived runs by a worker, in short transactions: a run may have millions of rows.

Files of the run remain: other runs may train from its checkpoints.
"""

from __future__ import annotations

import math
import time

from django.contrib.auth.models import User
from django.db import transaction

from webapp.core.dispatch import TaskName, send, send_on_commit
from webapp.core.services import audit, notifications
from webapp.rollouts.services import removal
from webapp.runs.models.runs import Run
from webapp.runs.services.edits import ARCHIVABLE
from webapp.runs.services.states import IllegalTransitionError

TASK_S = 2.0
"""Time after which a task begins no further transaction, seconds."""


@transaction.atomic
def request(*, run: Run, actor: User | None = None) -> None:
    """Have a worker delete a run with all its rows.

    Raises:
        IllegalTransitionError: it is not archived; an ended run can be.
    """
    row = Run.objects.select_for_update(of=("self",)).get(pk=run.pk)
    if not _is_deletable(row):
        raise IllegalTransitionError(row.pk, f"{row.state} and not archived", "deleted: archive it first")
    audit.record(actor=actor, action="run.delete", target=f"run {row.pk} {row.name}")
    send_on_commit(TaskName.DELETE_RUN, row.pk)


def delete(*, run_id: int, seconds: float = math.inf) -> bool:
    """Delete rows of an archived run, then the run; stop if it is restored.

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
    if delete(run_id=run_id, seconds=TASK_S):
        send(TaskName.DELETE_RUN, run_id)


@transaction.atomic
def _delete_part(run_id: int) -> bool:
    """Delete some rows, or the run if it has no more; return whether there may be more."""
    run = Run.objects.select_for_update(of=("self",)).filter(pk=run_id).first()
    if run is None or not _is_deletable(run):
        return False
    if removal.remove_part(run_id=run_id):
        return True
    run.delete()
    notifications.run_changed(run_id, run.last_seq)
    return False


def _is_deletable(run: Run) -> bool:
    return run.archived_at is not None and run.state in ARCHIVABLE
