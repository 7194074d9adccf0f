"""Reads of a dataset's health: what validation found, what is in quarantine, how long grading takes."""

from __future__ import annotations

import json
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


NO_TIMES = GradingTimes((0,) * (len(SECOND_BOUNDS) + 1), None, None, None, 0.0)
_TIMES = """
    WITH times AS MATERIALIZED (
        SELECT v.noop_seconds, v.gold_seconds
        FROM webapp_task t JOIN webapp_validation v ON v.id = t.validation_id
        WHERE t.dataset_id = %(dataset)s AND t.active
    ), sides AS (
        SELECT 'noop' AS side, noop_seconds AS seconds FROM times WHERE noop_seconds IS NOT NULL
        UNION ALL SELECT 'gold', gold_seconds FROM times WHERE gold_seconds IS NOT NULL
    ), bins AS (
        SELECT side, width_bucket(seconds, %(bounds)s::float8[]) AS bin, count(*) AS n
        FROM sides GROUP BY 1, 2
    )
    SELECT side, percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY seconds),
        max(seconds), sum(seconds),
        (SELECT jsonb_object_agg(bin, n) FROM bins b WHERE b.side = s.side)
    FROM sides s GROUP BY side
"""


def grading_times(dataset: Dataset) -> dict[str, GradingTimes]:
    """Times of gradings without a patch (``noop``) and with the ``gold`` patch, where there were any."""
    found = {}
    with connection.cursor() as cursor:
        cursor.execute(_TIMES, {"dataset": dataset.pk, "bounds": list(SECOND_BOUNDS)})
        for side, (median, p95), longest, total, bins in cursor.fetchall():
            filled = bins if isinstance(bins, dict) else json.loads(bins)
            counts = tuple(filled.get(str(n), 0) for n in range(len(SECOND_BOUNDS) + 1))
            found[side] = GradingTimes(counts, median, p95, longest, total)
    return found


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
