"""Reads of a dataset's health: validation results, quarantine, grading times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connection
from django.db.models import Count

from engine.events.health import RowStatus
from engine.types import RunKind
from webapp.core.selectors import Page, paginate
from webapp.datasets.models.datasets import Dataset, Task
from webapp.datasets.models.health import QuarantineDecision, Validation
from webapp.runs.models.runs import Run
from webapp.runs.selectors.runs import ACTIVE_STATES

SECOND_BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0)
"""Upper bounds of the histogram's bins, seconds; the last bin has none."""


@dataclass(frozen=True, slots=True)
class OutcomeCount:
    """Number of tasks with one outcome."""

    health: str
    """Status of the newest validation; empty for tasks that were never validated."""
    noop: str
    gold: str
    quarantined: bool
    tasks: int


def outcome_counts(dataset: Dataset) -> list[OutcomeCount]:
    """Return numbers of active tasks by result of the newest validation and by quarantine."""
    rows = (
        Task.objects.filter(dataset=dataset, active=True)
        .order_by()
        .values("health", "validation__noop", "validation__gold", "quarantined")
        .annotate(tasks=Count("id"))
        .values_list("health", "validation__noop", "validation__gold", "quarantined", "tasks")
    )
    return [
        OutcomeCount(health, noop or "", gold or "", quarantined, tasks)
        for health, noop, gold, quarantined, tasks in rows
    ]


def quarantined_tasks(dataset: Dataset, *, number: int, size: int = 25) -> Page[Task]:
    """Return quarantined tasks with their newest validation, in the dataset's order."""
    tasks = Task.objects.filter(dataset=dataset, active=True, quarantined=True)
    return paginate(
        tasks.select_related("validation").defer("problem_statement").order_by("position", "id"),
        number=number,
        size=size,
    )


def flaky_tasks(dataset: Dataset, limit: int = 25) -> list[Task]:
    """Return tasks whose newest validation was flaky, sorted by their number of flaky tests."""
    tasks = Task.objects.filter(dataset=dataset, active=True, health=RowStatus.FLAKY.value)
    return list(
        tasks.select_related("validation")
        .defer("problem_statement")
        .order_by("-validation__num_flaky_tests", "position")[:limit]
    )


@dataclass(frozen=True, slots=True)
class GradingTimes:
    """Duration of one grading of a task: mean of its repeats, over tasks."""

    counts: tuple[int, ...]
    """Tasks per bin of ``SECOND_BOUNDS``, and of one more bin above the last bound."""
    median: float | None
    p95: float | None
    longest: float | None
    total: float
    """Sum over one grading of every task, seconds."""


NO_TIMES = GradingTimes((0,) * (len(SECOND_BOUNDS) + 1), None, None, None, 0.0)
_TIMED = (
    "FROM webapp_task t JOIN webapp_validation v ON v.id = t.validation_id"
    " WHERE t.dataset_id = %(dataset)s AND t.active"
)
_SIDES = ("noop", "gold")


def grading_times(dataset: Dataset) -> dict[str, GradingTimes]:
    """Return durations of gradings without a patch (``noop``) and with the ``gold`` patch."""
    bins = ", ".join(f"width_bucket(v.{side}_seconds, %(bounds)s::float8[])" for side in _SIDES)
    totals = ", ".join(
        f"percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY v.{side}_seconds),"
        f" max(v.{side}_seconds), sum(v.{side}_seconds)"
        for side in _SIDES
    )
    values: dict[str, Any] = {"dataset": dataset.pk, "bounds": list(SECOND_BOUNDS)}
    counts = {side: [0] * (len(SECOND_BOUNDS) + 1) for side in _SIDES}
    with connection.cursor() as cursor:
        # One pass over the table for both sides: count pairs of bins, then sum them per side.
        cursor.execute(f"SELECT {bins}, count(*) {_TIMED} GROUP BY 1, 2", values)
        for *pair, tasks in cursor.fetchall():
            for side, position in zip(_SIDES, pair, strict=True):
                if position is not None:
                    counts[side][position] += tasks
        cursor.execute(f"SELECT {totals} {_TIMED}", values)
        row = list(cursor.fetchone() or [])
    times = {}
    for index, side in enumerate(_SIDES):
        if sum(counts[side]):
            (median, p95), longest, total = row[3 * index : 3 * index + 3]
            times[side] = GradingTimes(tuple(counts[side]), median, p95, longest, total)
    return times


@dataclass(frozen=True, slots=True)
class StrengthCounts:
    """Test strength of a dataset's tasks."""

    tasks: int
    """Number of tasks with a measurement."""
    counts: tuple[int, ...]
    """Number of tasks per tenth of the share of rejected wrong patches; 1 belongs to the last tenth."""
    mean: float
    kinds: dict[str, tuple[int, int]]
    """Kind of wrong patch → (rejected, graded), over all tasks."""


STRENGTH_BINS = 10
"""Number of bins, as of solve rates."""


def strength_counts(dataset: Dataset) -> StrengthCounts | None:
    """Return the test strength of active tasks; None if it was never measured."""
    counts, total = [0] * STRENGTH_BINS, 0.0
    with connection.cursor() as cursor:
        cursor.execute(_SHARES, [STRENGTH_BINS, STRENGTH_BINS - 1, dataset.pk])
        for position, tasks, shares in cursor.fetchall():
            counts[position], total = tasks, total + shares
        if not any(counts):
            return None
        cursor.execute(_KINDS, [dataset.pk])
        kinds = {kind: (int(rejected), int(graded)) for kind, rejected, graded in cursor.fetchall()}
    return StrengthCounts(sum(counts), tuple(counts), total / sum(counts), kinds)


_SHARES = (
    "SELECT least(floor(strength * %s)::int, %s), count(*), sum(strength) FROM webapp_task"
    " WHERE dataset_id = %s AND active AND strength IS NOT NULL GROUP BY 1"
)
_KINDS = (
    "SELECT k.key, sum((k.value->>'rejected')::int), sum((k.value->>'graded')::int) FROM ("
    "SELECT DISTINCT ON (t.id) v.strength FROM webapp_validation v JOIN webapp_task t ON t.id = v.task_id"
    " WHERE t.dataset_id = %s AND t.active AND t.strength IS NOT NULL"
    " AND jsonb_path_exists(v.strength, '$.kinds.*')"
    " AND (t.content = '' OR v.content = t.content) ORDER BY t.id, v.time DESC, v.id DESC"
    ") newest, jsonb_each(newest.strength->'kinds') k GROUP BY 1 ORDER BY 1"
)


def weakest_tasks(dataset: Dataset, limit: int = 10) -> list[Task]:
    """Return tasks whose tests let a wrong patch pass, the weakest first."""
    tasks = Task.objects.filter(dataset=dataset, active=True, strength__lt=1)
    return list(tasks.only("key", "instance_id", "strength").order_by("strength", "position")[:limit])


@dataclass(frozen=True, slots=True)
class MutantCounts:
    """Numbers of required tests by their best proven mutant."""

    value: int
    changed: int
    added: int
    none: int
    tasks: int
    """Number of tasks with a proof, failed or not."""
    tasks_without: int
    """Number of tasks without a mutable test; they are never audited."""
    tasks_failed: int
    """Number of tasks whose proof failed; they are not audited either."""

    @property
    def tests(self) -> int:
        """Return the number of tests."""
        return self.value + self.changed + self.added + self.none


def mutant_counts(dataset: Dataset) -> MutantCounts | None:
    """Return the numbers of tests by their mutants; None if no task has a proof."""
    sums = ", ".join(
        f"coalesce(sum((p.coverage->>'{kind}')::int), 0)" for kind in ("value", "changed", "added", "none")
    )
    query = (
        f"SELECT {sums}, count(*), count(*) FILTER (WHERE (p.coverage->>'variants')::int = 0),"  # noqa: S608
        " count(*) FILTER (WHERE p.problem <> '')"
        " FROM webapp_task t JOIN webapp_proof p ON p.id = t.proof_id WHERE t.dataset_id = %s AND t.active"
    )
    with connection.cursor() as cursor:
        cursor.execute(query, [dataset.pk])
        counts = MutantCounts(*(cursor.fetchone() or (0,) * 7))
    return counts if counts.tasks else None


def failed_proofs(dataset: Dataset, limit: int = 25) -> list[Task]:
    """Return tasks whose newest proof of mutated tests failed, in the dataset's order."""
    tasks = Task.objects.filter(dataset=dataset, active=True).exclude(proof__problem="")
    return list(
        tasks.filter(proof__isnull=False)
        .select_related("proof")
        .defer("problem_statement")
        .order_by("position", "id")[:limit]
    )


def validation_runs(dataset: Dataset, limit: int = 10) -> list[Run]:
    """Return runs that validated the dataset, newest first."""
    runs = Run.objects.filter(dataset=dataset, kind=RunKind.VALIDATE)
    return list(runs.select_related("created_by").defer("config").order_by("-id")[:limit])


def active_run(runs: Sequence[Run]) -> Run | None:
    """Return the newest run that is queued or live; ``runs`` are ordered newest first."""
    return next((run for run in runs if run.state in ACTIVE_STATES), None)


def validations_of(task: Task, limit: int = 50) -> list[Validation]:
    """Return the validations of a task, newest first."""
    return list(task.validations.select_related("run").order_by("-time", "-id")[:limit])


def decisions_about(task: Task, limit: int = 50) -> list[QuarantineDecision]:
    """Return the quarantine decisions about a task, newest first."""
    return list(task.decisions.order_by("-time", "-id")[:limit])
