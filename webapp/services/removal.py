"""Deletion in SQL of rows that an attempt will repeat; the ORM would load every step first."""

from __future__ import annotations

from django.db import connection, transaction

from webapp.models import Alert, Checkpoint, Evaluation, Iteration

_PARTS = (
    "webapp_step", "webapp_testresult", "webapp_testlog", "webapp_tokenblob", "webapp_annotation",
)  # fmt: skip


@transaction.atomic
def remove_from(*, run_id: int, iteration: int | None) -> None:
    """Remove training from ``iteration`` on and the evaluations and checkpoints after it.

    ``iteration`` is the number of iterations completed when the checkpoint was made: evaluations and
    the checkpoint at that number are part of it and are kept. None removes everything.
    """
    made_again = -1 if iteration is None else iteration
    Iteration.objects.filter(run_id=run_id, index__gte=made_again).delete()
    Evaluation.objects.filter(run_id=run_id, iteration__gt=made_again).delete()
    Checkpoint.objects.filter(run_id=run_id, iteration__gt=made_again).delete()
    Alert.objects.filter(run_id=run_id, seq__isnull=False, iteration__gte=made_again).delete()
    where = "run_id = %s AND ((phase = 'train' AND iteration >= %s) OR iteration > %s)"
    arguments = [run_id, made_again, made_again]
    with connection.cursor() as cursor:
        for table in _PARTS:
            cursor.execute(
                f"DELETE FROM {table} p USING webapp_trajectory t WHERE p.trajectory_id = t.id AND t.{where}",  # noqa: S608
                arguments,
            )
        for table in ("webapp_trajectory", "webapp_group"):
            cursor.execute(f"DELETE FROM {table} WHERE {where}", arguments)  # noqa: S608
