"""Deletion in SQL of rows that an attempt will repeat; the ORM would load every step first.

An attempt repeats what follows its checkpoint, or, in runs that keep finished rollouts, what was unfinished.
"""

from __future__ import annotations

from typing import Any

from django.db import connection, transaction

from webapp.rollouts.models.trajectories import Group, Trajectory
from webapp.rollouts.services.store import refresh_groups
from webapp.runs.models.alerts import Alert
from webapp.runs.models.iterations import Checkpoint, Evaluation, Iteration

_PARTS = tuple(part.related_model._meta.db_table for part in Trajectory._meta.related_objects)
"""Tables whose rows belong to a trajectory by ``trajectory_id``."""


@transaction.atomic
def remove_from(*, run_id: int, iteration: int | None) -> None:
    """Remove training from ``iteration`` on and the evaluations and checkpoints after it.

    ``iteration`` is the number of iterations completed when the checkpoint was made: evaluations and
    the checkpoint at that number are part of it and are kept, but rollouts that have not finished. None
    removes everything.
    """
    made_again = -1 if iteration is None else iteration
    Iteration.objects.filter(run_id=run_id, index__gte=made_again).delete()
    Evaluation.objects.filter(run_id=run_id, iteration__gt=made_again).delete()
    Checkpoint.objects.filter(run_id=run_id, iteration__gt=made_again).delete()
    Alert.objects.filter(run_id=run_id, seq__isnull=False, iteration__gte=made_again).delete()
    where = "run_id = %s AND ((phase = 'train' AND iteration >= %s) OR iteration > %s)"
    arguments = [run_id, made_again, made_again]
    _remove_trajectories(where, arguments)
    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM webapp_group WHERE {where}", arguments)  # noqa: S608
    _remove_unfinished(run_id)


@transaction.atomic
def remove_unfinished(*, run_id: int, iteration: int) -> None:
    """Remove trajectories that have not finished, and alerts from ``iteration`` on: they are raised again."""
    Alert.objects.filter(run_id=run_id, seq__isnull=False, iteration__gte=iteration).delete()
    _remove_unfinished(run_id)


def _remove_unfinished(run_id: int) -> None:
    unfinished = Trajectory.objects.filter(run_id=run_id).exclude(state=Trajectory.State.FINISHED)
    groups = list(unfinished.values_list("group_id", flat=True).distinct())
    _remove_trajectories("run_id = %s AND state <> %s", [run_id, Trajectory.State.FINISHED.value])
    Group.objects.filter(pk__in=groups, trajectories=None).delete()
    refresh_groups(groups)


def _remove_trajectories(where: str, arguments: list[Any]) -> None:
    """Delete trajectories with everything that belongs to them; ``where`` is SQL of this module."""
    with connection.cursor() as cursor:
        for table in _PARTS:
            cursor.execute(
                f"DELETE FROM {table} p USING webapp_trajectory t WHERE p.trajectory_id = t.id AND t.{where}",  # noqa: S608
                arguments,
            )
        cursor.execute(f"DELETE FROM webapp_trajectory WHERE {where}", arguments)  # noqa: S608
