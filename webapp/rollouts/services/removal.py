"""SQL deletion of a run's rows; the ORM would load every step first.

A new attempt repeats everything after its checkpoint, or only unfinished rollouts in runs that keep finished
ones: these rows are deleted before it produces them again.
"""

from __future__ import annotations

from typing import Any

from django.db import connection, transaction

from webapp.rollouts.models.scans import Scan
from webapp.rollouts.models.trajectories import Group, TokenTrace, Trajectory
from webapp.rollouts.services.store import refresh_groups
from webapp.runs.models.alerts import Alert
from webapp.runs.models.events import Event
from webapp.runs.models.iterations import Checkpoint, Evaluation, Iteration
from webapp.runs.models.runs import Run

PART_TRAJECTORIES, PART_EVENTS = 200, 10_000
"""Rows that one call of ``remove_part`` deletes; the run is locked for some tenths of a second."""
_PARTS = tuple(
    sorted(
        (part.related_model._meta.db_table for part in Trajectory._meta.related_objects),
        key=lambda table: (table != Scan._meta.db_table, table),
    )
)
"""Tables that reference a trajectory by ``trajectory_id``. Scans are the first: workers lock the scan while
they write passages, so a deletion waits for them and leaves none of their passages."""


@transaction.atomic
def remove_from(*, run_id: int, iteration: int | None) -> None:
    """Delete training data from ``iteration`` on, and later evaluations and checkpoints.

    ``iteration`` is the number of iterations completed at the checkpoint. Evaluations and the checkpoint
    with that number are kept, except unfinished rollouts. None deletes everything.
    """
    completed = -1 if iteration is None else iteration
    Iteration.objects.filter(run_id=run_id, index__gte=completed).delete()
    Evaluation.objects.filter(run_id=run_id, iteration__gt=completed).delete()
    Checkpoint.objects.filter(run_id=run_id, iteration__gt=completed).delete()
    Alert.objects.filter(run_id=run_id, iteration__gte=completed).delete()
    # Of a trajectory that was sampled before the checkpoint and trained on after it, the trace is repeated.
    TokenTrace.objects.filter(trajectory__run_id=run_id, iteration__gte=completed).delete()
    where = "run_id = %s AND ((phase = 'train' AND iteration >= %s) OR iteration > %s)"
    arguments = [run_id, completed, completed]
    _remove_trajectories(where, arguments)
    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM webapp_group WHERE {where}", arguments)  # noqa: S608
    _remove_unfinished(run_id)


@transaction.atomic
def remove_unfinished(*, run_id: int, iteration: int) -> None:
    """Delete unfinished trajectories, and alerts from ``iteration`` on, which are raised again."""
    Alert.objects.filter(run_id=run_id, iteration__gte=iteration).delete()
    _remove_unfinished(run_id)


@transaction.atomic
def remove_part(*, run_id: int) -> bool:
    """Delete some trajectories with their rows, or some events; return whether there were any.

    A crash of the database may bring back what was deleted last.
    """
    with connection.cursor() as cursor:
        # Commits need not wait for the disk: rows that come back are deleted again.
        cursor.execute("SET LOCAL synchronous_commit = off")
    rows = Trajectory.objects.filter(run_id=run_id).order_by("-pk")
    if ids := list(rows.values_list("pk", flat=True)[:PART_TRAJECTORIES]):
        with connection.cursor() as cursor:
            for table in _PARTS:
                cursor.execute(f"DELETE FROM {table} WHERE trajectory_id = ANY(%s)", [ids])  # noqa: S608
            cursor.execute("DELETE FROM webapp_trajectory WHERE id = ANY(%s)", [ids])
        return True
    # From ``last_seq`` down: a search for the first event left would visit all deleted ones each time.
    last = Run.objects.values_list("last_seq", flat=True).get(pk=run_id)
    left = max(0, last - PART_EVENTS)
    events = Event.objects.filter(run_id=run_id, seq__gt=left, seq__lte=last)
    events._raw_delete(events.db)
    Run.objects.filter(pk=run_id).update(last_seq=left)
    return last > 0


def _remove_unfinished(run_id: int) -> None:
    unfinished = Trajectory.objects.filter(run_id=run_id).exclude(state=Trajectory.State.FINISHED)
    group_ids = list(unfinished.values_list("group_id", flat=True).distinct())
    _remove_trajectories("run_id = %s AND state <> %s", [run_id, Trajectory.State.FINISHED.value])
    Group.objects.filter(pk__in=group_ids, trajectories=None).delete()
    refresh_groups(group_ids)


def _remove_trajectories(where: str, arguments: list[Any]) -> None:
    """Delete trajectories and the rows that reference them; ``where`` must be SQL from this module."""
    ids = f"SELECT id FROM webapp_trajectory WHERE {where}"  # noqa: S608
    with connection.cursor() as cursor:
        for table in _PARTS:
            cursor.execute(f"DELETE FROM {table} WHERE trajectory_id IN ({ids})", arguments)  # noqa: S608
        cursor.execute(f"DELETE FROM webapp_trajectory WHERE {where}", arguments)  # noqa: S608
