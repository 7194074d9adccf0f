"""Measured difficulty: solve rate of each task over the graded rollouts of all runs on its dataset.

Training, evaluation and imported trajectories count. Runs of the oracle and of the no-op policy do not: they
measure the task's row, not its difficulty. Rollouts lost to infrastructure are not graded. All sums are over
``webapp_group``, which ingest maintains, and are read from one index.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from django.db import connection
from django.db.models import F, FloatField, QuerySet, Sum
from django.db.models.functions import Cast

from webapp.datasets.models.datasets import Dataset
from webapp.rollouts.models.trajectories import Group
from webapp.runs.models.runs import Run

SCRIPTED = ("oracle", "noop")
"""Types of scripted policies."""
CLASSES = ("none", "mixed", "all", "unmeasured")
"""Classes of tasks: never, sometimes or always solved; not measured yet."""
BINS = 10
_Z = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True, slots=True)
class SolveRate:
    """Solve rate of a task."""

    solved: int = 0
    graded: int = 0
    cut_short: int = 0
    """Graded rollouts that a time limit ended unsolved."""

    @property
    def rate(self) -> float | None:
        """Return the share of solved rollouts; None without a graded rollout."""
        return self.solved / self.graded if self.graded else None

    @property
    def kind(self) -> str:
        """Return the task's class, one of ``CLASSES``."""
        if not self.graded:
            return "unmeasured"
        return "none" if not self.solved else "all" if self.solved == self.graded else "mixed"

    @property
    def interval(self) -> tuple[float, float]:
        """Return the 95 % Wilson score interval (Wilson 1927) for independent attempts of one policy."""
        if not self.graded:
            return 0.0, 1.0
        p, n = self.solved / self.graded, self.graded
        shrink = 1 + _Z * _Z / n
        centre = (p + _Z * _Z / (2 * n)) / shrink
        half = _Z / shrink * math.sqrt(p * (1 - p) / n + _Z * _Z / (4 * n * n))
        return max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half))


@dataclass(frozen=True, slots=True)
class Profile:
    """A dataset's tasks by measured difficulty."""

    classes: dict[str, int]
    """Class → number of active tasks, for every class."""
    bins: tuple[int, ...]
    """Measured tasks by solve rate, in ``BINS`` equal parts of 0 … 1; the last part includes 1."""
    attempts: int
    """Number of graded rollouts of these tasks."""


def measuring_runs(dataset_id: int) -> list[int]:
    """Return the ids of runs on a dataset whose policy solves tasks without access to the answers."""
    runs = Run.objects.filter(dataset=dataset_id).exclude(config__policy__type__in=SCRIPTED)
    runs = runs.exclude(pk__in=Run.writing_tests())
    return list(runs.order_by().values_list("pk", flat=True))


def _summed(dataset_id: int) -> QuerySet[Any, Any]:
    """Return ``task_id, n, s, c`` of every measured task of the dataset, active or not.

    Tasks whose rollouts were all ended unsolved by a time limit are not measured.
    """
    groups = Group.objects.filter(run__in=measuring_runs(dataset_id), num_graded__gt=0)
    return (
        groups.filter(task__isnull=False)
        .order_by()
        .values("task_id")
        .annotate(n=Sum("num_graded"), s=Sum("num_solved"), c=Sum("num_cut_short"))
        .filter(n__gt=F("c"))
    )


def rates_of(dataset_id: int, task_ids: Collection[int]) -> dict[int, SolveRate]:
    """Return solve rates of some tasks of a dataset; unmeasured tasks have no entry."""
    rows = _summed(dataset_id).filter(task_id__in=task_ids).values_list("task_id", "s", "n", "c")
    return {task_id: SolveRate(*counts) for task_id, *counts in rows}


def measured_tasks(
    dataset_id: int, *, kind: str = "", low: float | None = None, high: float | None = None
) -> QuerySet[Any, Any]:
    """Return ids of measured tasks as a subquery, limited to a class and a range of solve rates."""
    sums = _summed(dataset_id)
    if kind == "none":
        sums = sums.filter(s=0)
    elif kind == "all":
        sums = sums.filter(s=F("n"))
    elif kind == "mixed":
        sums = sums.filter(s__gt=0, s__lt=F("n"))
    if low is not None or high is not None:
        sums = sums.annotate(rate=Cast(F("s"), FloatField()) / F("n"))
    if low is not None:
        sums = sums.filter(rate__gte=low)
    if high is not None:
        sums = sums.filter(rate__lte=high)
    return sums.values("task_id")


def by_key(dataset: Dataset) -> dict[str, tuple[int, int]]:
    """Return task key → (solved, graded) of the dataset's active measured tasks."""
    rows = _summed(dataset.pk).filter(task__active=True).values_list("task__key", "s", "n")
    return {key: (solved, graded) for key, solved, graded in rows}


_PROFILE = """
    WITH rates AS (
        SELECT task_id, sum(num_solved) AS s, sum(num_graded) AS n
        FROM webapp_group WHERE run_id = ANY(%s) AND num_graded > 0 GROUP BY task_id
        HAVING sum(num_graded) > sum(num_cut_short)
    )
    SELECT CASE WHEN s = 0 THEN 'none' WHEN s = n THEN 'all' ELSE 'mixed' END,
        least(%s - 1, floor(%s * s / n))::int, count(*), sum(n)
    FROM rates r JOIN webapp_task t ON t.id = r.task_id AND t.dataset_id = %s AND t.active GROUP BY 1, 2
"""


def profile(dataset: Dataset) -> Profile:
    """Return classes and histogram of a dataset, from one pass over the index."""
    classes = dict.fromkeys(CLASSES, 0)
    bins = [0] * BINS
    attempts = 0
    with connection.cursor() as cursor:
        cursor.execute(_PROFILE, [measuring_runs(dataset.pk), BINS, BINS, dataset.pk])
        for kind, position, tasks, graded in cursor.fetchall():
            classes[kind] += tasks
            bins[position] += tasks
            attempts += int(graded)
    classes["unmeasured"] = max(0, dataset.num_tasks - sum(classes.values()))
    return Profile(classes=classes, bins=tuple(bins), attempts=attempts)
