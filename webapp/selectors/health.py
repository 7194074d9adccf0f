"""Reads of a dataset's health: what validation found, what is in quarantine, how long grading takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db import connection
from django.db.models import Count

from engine.events.health import RowStatus
from webapp.models import Dataset, QuarantineDecision, Run, Task, Validation
from webapp.selectors.paging import Page, paginate
from webapp.selectors.runs import ACTIVE_STATES

SECOND_BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0)
"""Upper bounds of the histogram's bins, seconds; the last bin has none."""


@dataclass(frozen=True, slots=True)
class OutcomeCount:
    """So many tasks came to this."""

    health: str
    """Empty: never validated."""
    noop: str
    gold: str
    quarantined: bool
    tasks: int


def outcome_counts(dataset: Dataset) -> list[OutcomeCount]:
    """Active tasks by what their newest validation found and whether they are in quarantine."""
    rows = (
        Task.objects.filter(dataset=dataset, active=True)
        .order_by()
        .values("health", "validation__noop", "validation__gold", "quarantined")
        .annotate(tasks=Count("id"))
        .values_list("health", "validation__noop", "validation__gold", "quarantined", "tasks")
    )
    return [OutcomeCount(health, noop or "", gold or "", held, n) for health, noop, gold, held, n in rows]


def quarantined_tasks(dataset: Dataset, *, number: int, size: int = 25) -> Page[Task]:
    """Tasks in quarantine with the validation behind it, in the dataset's order."""
    tasks = Task.objects.filter(dataset=dataset, active=True, quarantined=True)
    return paginate(
        tasks.select_related("validation").defer("problem_statement").order_by("position", "id"),
        number=number,
        size=size,
    )


def flaky_tasks(dataset: Dataset, limit: int = 25) -> list[Task]:
    """Tasks whose newest validation wavered, those with most wavering tests first."""
    tasks = Task.objects.filter(dataset=dataset, active=True, health=RowStatus.FLAKY.value)
    return list(
        tasks.select_related("validation")
        .defer("problem_statement")
        .order_by("-validation__num_flaky_tests", "position")[:limit]
    )


@dataclass(frozen=True, slots=True)
class GradingTimes:
    """How long one grading of a task takes: mean of its repeats, over tasks."""

    counts: tuple[int, ...]
    """Tasks per bin of ``SECOND_BOUNDS``, and one more for the rest."""
    median: float | None
    p95: float | None
    longest: float | None
    total: float
    """Of one grading of every task, seconds."""


def grading_times(dataset: Dataset, side: str) -> GradingTimes:
    """Times of gradings with the ``gold`` patch, or without one (``noop``)."""
    column = {"noop": "noop_seconds", "gold": "gold_seconds"}[side]
    where = (
        f"FROM webapp_validation v JOIN webapp_task t ON t.validation_id = v.id"
        f" WHERE t.dataset_id = %s AND t.active AND v.{column} IS NOT NULL"
    )
    counts = [0] * (len(SECOND_BOUNDS) + 1)
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT width_bucket(v.{column}, %s::float8[]), count(*) {where} GROUP BY 1",
            [list(SECOND_BOUNDS), dataset.pk],
        )
        for position, tasks in cursor.fetchall():
            counts[position] = tasks
        cursor.execute(
            f"SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY v.{column}),"
            f" percentile_cont(0.95) WITHIN GROUP (ORDER BY v.{column}), max(v.{column}),"
            f" coalesce(sum(v.{column}), 0) {where}",
            [dataset.pk],
        )
        median, p95, longest, total = cursor.fetchone() or (None, None, None, 0.0)
    return GradingTimes(tuple(counts), median, p95, longest, total)


def validation_runs(dataset: Dataset, limit: int = 10) -> list[Run]:
    """Runs that validated the dataset, newest first."""
    runs = Run.objects.filter(dataset=dataset, kind="curate", config__has_key="validation")
    return list(runs.select_related("created_by").defer("config").order_by("-id")[:limit])


def active_run(runs: Sequence[Run]) -> Run | None:
    """The newest of them that is queued or alive."""
    return next((run for run in runs if run.state in ACTIVE_STATES), None)


def validations_of(task: Task, limit: int = 50) -> list[Validation]:
    """What was ever found about a task, newest first."""
    return list(task.validations.select_related("run").order_by("-time", "-id")[:limit])


def decisions_about(task: Task, limit: int = 50) -> list[QuarantineDecision]:
    """What people ever decided about a task, newest first."""
    return list(task.decisions.order_by("-time", "-id")[:limit])
