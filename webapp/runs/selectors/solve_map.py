"""Solve map of a training run: tasks × iterations, the iterations in buckets.

The database aggregates: it returns one row per task, and one per cell of the tasks on the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Count, F, Max, Min, Q, Sum
from django.db.models.functions import Coalesce

from webapp.core.selectors import Page
from webapp.datasets.models.datasets import Task
from webapp.rollouts.models.trajectories import Group

SORTS = ("name", "rate", "change", "first")
"""Sort keys of the tasks; a leading minus sorts descending. Tasks without a value come last."""
MOST_BUCKETS = 64


@dataclass(frozen=True, slots=True)
class Buckets:
    """Consecutive iterations of a run, equally many in each bucket but the last.

    The width is a power of two, so that a full bucket stays the same while the run goes on.
    """

    first: int
    last: int
    """First and last iteration of all buckets."""

    @property
    def width(self) -> int:
        """Return the number of iterations in a bucket."""
        width = 1
        while (self.last - self.first) // width >= MOST_BUCKETS:
            width *= 2
        return width

    def __len__(self) -> int:
        return (self.last - self.first) // self.width + 1

    @property
    def middle(self) -> int:
        """Return the first iteration of the second half of the buckets."""
        return self.first + (len(self) + 1) // 2 * self.width

    def range_of(self, bucket: int) -> tuple[int, int]:
        """Return the first and the last iteration of a bucket."""
        first = self.first + bucket * self.width
        return first, min(first + self.width - 1, self.last)


@dataclass(frozen=True, slots=True)
class Cell:
    """The groups of a task in a bucket."""

    bucket: int
    solved: int
    graded: int
    cut_short: int
    """Graded rollouts that a time limit ended unsolved."""
    groups: int
    iteration: int
    """Iteration of the first group."""


@dataclass(frozen=True, slots=True)
class SolvedTask:
    """A task's rollouts over all iterations."""

    key: str
    name: str
    solved: int
    graded: int
    cut_short: int
    change: float | None
    """Solve rate in the second half of the buckets minus that in the first; None where one is unknown."""
    first_solved: int | None
    """Iteration in which it was first solved."""

    @property
    def rate(self) -> float | None:
        """Return the solve rate; None when nothing was graded."""
        return self.solved / self.graded if self.graded else None


@dataclass(frozen=True, slots=True)
class SolveMap:
    """One page of the map."""

    buckets: Buckets
    page: Page[SolvedTask]
    cells: dict[str, tuple[Cell, ...]]
    """Cells with groups, by the key of their task."""


def solve_map(run_id: int, *, sort: str = "-change", number: int = 1, size: int = 50) -> SolveMap | None:
    """Return one page of the map: four queries; None before the first training group.

    Args:
        run_id: the run.
        sort: one of ``SORTS``, with a leading minus for descending.
        number: page, from 1; one past the end is the last.
        size: tasks of a page.
    """
    groups = Group.objects.filter(run_id=run_id, phase="train").order_by()
    extent = groups.aggregate(first=Min("iteration"), last=Max("iteration"))
    if extent["first"] is None:
        return None
    buckets = Buckets(extent["first"], extent["last"])
    tasks = _sorted(_tasks(run_id, buckets), sort)
    number = max(1, min(number, -(-len(tasks) // size)))
    shown = tasks[(number - 1) * size : number * size]
    page = Page(rows=shown, total=len(tasks), number=number, size=size)
    return SolveMap(buckets, page, _cells(run_id, buckets, [task.key for task in shown]))


def _tasks(run_id: int, buckets: Buckets) -> list[SolvedTask]:
    early, late = Q(iteration__lt=buckets.middle), Q(iteration__gte=buckets.middle)
    totals = (
        Group.objects.filter(run_id=run_id, phase="train")
        .order_by()
        .values("task_key")
        .annotate(
            task=Max("task_id"),
            solved=Sum("num_solved"),
            graded=Sum("num_graded"),
            cut_short=Sum("num_cut_short"),
            first_solved=Min("iteration", filter=Q(num_solved__gt=0)),
            early_solved=Coalesce(Sum("num_solved", filter=early), 0),
            early_graded=Coalesce(Sum("num_graded", filter=early), 0),
            late_solved=Coalesce(Sum("num_solved", filter=late), 0),
            late_graded=Coalesce(Sum("num_graded", filter=late), 0),
        )
    )
    rows = list(totals)
    names = dict(Task.objects.filter(pk__in=[row["task"] for row in rows]).values_list("pk", "instance_id"))
    return [
        SolvedTask(
            row["task_key"], names.get(row["task"], row["task_key"]), row["solved"], row["graded"],
            row["cut_short"],
            row["late_solved"] / row["late_graded"] - row["early_solved"] / row["early_graded"]
            if row["late_graded"] and row["early_graded"]
            else None,
            row["first_solved"],
        )
        for row in rows
    ]  # fmt: skip


def _sorted(tasks: list[SolvedTask], sort: str) -> list[SolvedTask]:
    by, descending = sort.removeprefix("-"), sort.startswith("-")

    def value(task: SolvedTask) -> float | str | None:
        match by:
            case "rate":
                return task.rate
            case "change":
                return task.change
            case "first":
                return task.first_solved
        return task.name

    named = sorted(tasks, key=lambda task: task.name)
    known = [task for task in named if value(task) is not None]
    known.sort(key=value, reverse=descending)  # type: ignore[arg-type]
    return known + [task for task in named if value(task) is None]


def _cells(run_id: int, buckets: Buckets, keys: Sequence[str]) -> dict[str, tuple[Cell, ...]]:
    rows = (
        Group.objects.filter(run_id=run_id, phase="train", task_key__in=keys)
        .order_by()
        .annotate(bucket=(F("iteration") - buckets.first) / buckets.width)  # of integers, so rounded down
        .values("task_key", "bucket")
        .annotate(
            solved=Sum("num_solved"),
            graded=Sum("num_graded"),
            cut_short=Sum("num_cut_short"),
            groups=Count("id"),
            first=Min("iteration"),
        )
        .order_by("bucket")
        .values_list("task_key", "bucket", "solved", "graded", "cut_short", "groups", "first")
    )
    by_task: dict[str, list[Cell]] = {key: [] for key in keys}
    for key, *numbers in rows:
        by_task[key].append(Cell(*numbers))
    return {key: tuple(cells) for key, cells in by_task.items()}
