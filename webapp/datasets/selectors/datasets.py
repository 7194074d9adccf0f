"""Reads of datasets and tasks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.db.models import Count, F, IntegerField, Max, OuterRef, Q, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce

from webapp.core.selectors import Page, map_page, paginate
from webapp.datasets.models.datasets import Dataset, Task, TaskAnswer
from webapp.datasets.selectors import difficulty
from webapp.rollouts.models.trajectories import Group
from webapp.runs.models.runs import Run


def list_datasets() -> list[Dataset]:
    """Return every dataset with its ``num_runs``, ``num_validated`` and ``num_quarantined`` tasks."""
    tasks = Task.objects.filter(dataset=OuterRef("pk"), active=True)
    datasets = Dataset.objects.annotate(
        num_runs=Count("runs"),
        num_validated=_counted(tasks.exclude(health="")),
        num_quarantined=_counted(tasks.filter(quarantined=True)),
    )
    return list(datasets.order_by("name"))


def _counted(tasks: QuerySet[Task]) -> Coalesce:
    """Return the number of tasks of an outer dataset, as a column."""
    counts = tasks.order_by().values("dataset").annotate(n=Count("pk")).values("n")
    return Coalesce(Subquery(counts, output_field=IntegerField()), 0)


def get_dataset(name: str) -> Dataset | None:
    """Return a dataset with the run that created the dataset; None if it does not exist."""
    return Dataset.objects.select_related("run").filter(name=name).first()


def newest_datasets() -> list[Dataset]:
    """Return every dataset, newest first."""
    return list(Dataset.objects.order_by("-created_at", "-id"))


def has_folder(dataset: Dataset) -> bool:
    """Return whether the dataset's files exist on this machine; the database mirrors only a part."""
    return (Path(settings.TRAINYARD_HOME) / "datasets" / dataset.name / "answers.jsonl").exists()


UNVALIDATED, QUARANTINED = "unvalidated", "quarantined"
"""Values of ``TaskFilters.health`` besides a validation's status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilters:
    """Filters of a dataset's tasks; an empty filter matches every task."""

    split: str = ""
    q: str = ""
    """Part of the instance id or of the repository, or the complete key."""
    health: str = ""
    noop: str = ""
    gold: str = ""
    """Outcomes of the newest validation."""
    solved: str = ""
    """One of ``difficulty.CLASSES``."""
    rate_min: float | None = None
    rate_max: float | None = None
    """Bounds of the measured solve rate, both included."""
    strength_min: float | None = None
    strength_max: float | None = None
    """Bounds of the measured test strength, both included."""
    order: str = ""
    """``weakest``: by test strength, tasks without a measurement last; empty: the dataset's order."""

    @property
    def by_rate(self) -> bool:
        """Return whether only measured tasks can pass the filters."""
        return self.rate_min is not None or self.rate_max is not None


def list_tasks(
    dataset: Dataset, filters: TaskFilters, *, number: int, size: int = 50, with_statements: bool = False
) -> Page[Task]:
    """Return tasks, each with its newest valid validation; statements are read only ``with_statements``."""
    # The first query selects keys from narrow indexes; the second one loads only the rows of the page.
    order = [F("strength").asc(nulls_last=True)] if filters.order == "weakest" else []
    page = paginate(
        _narrowed(dataset, filters).only("pk").order_by(*order, "position", "id"), number=number, size=size
    )
    tasks = Task.objects.select_related("validation")
    if not with_statements:
        tasks = tasks.defer("problem_statement")
    shown = tasks.in_bulk([task.pk for task in page.rows])
    return map_page(page, lambda task: shown[task.pk])


def _narrowed(dataset: Dataset, filters: TaskFilters) -> QuerySet[Task]:
    tasks = Task.objects.filter(dataset=dataset, active=True)
    if filters.split:
        tasks = tasks.filter(split=filters.split)
    if filters.q:
        tasks = tasks.filter(
            Q(instance_id__icontains=filters.q) | Q(repo__icontains=filters.q) | Q(key=filters.q)
        )
    if filters.health == QUARANTINED:
        tasks = tasks.filter(quarantined=True)
    elif filters.health:
        tasks = tasks.filter(health="" if filters.health == UNVALIDATED else filters.health)
    if filters.noop:
        tasks = tasks.filter(validation__noop=filters.noop)
    if filters.gold:
        tasks = tasks.filter(validation__gold=filters.gold)
    if filters.strength_min is not None:
        tasks = tasks.filter(strength__gte=filters.strength_min)
    if filters.strength_max is not None:
        tasks = tasks.filter(strength__lte=filters.strength_max)
    if filters.solved == "unmeasured":
        tasks = tasks.exclude(pk__in=difficulty.measured_tasks(dataset.pk))
    elif filters.solved:
        tasks = tasks.filter(pk__in=difficulty.measured_tasks(dataset.pk, kind=filters.solved))
    if filters.by_rate:
        measured = difficulty.measured_tasks(dataset.pk, low=filters.rate_min, high=filters.rate_max)
        tasks = tasks.filter(pk__in=measured)
    return tasks


def get_task(dataset_name: str, key: str) -> Task | None:
    """Return a task of a dataset, active or not; None if it does not exist."""
    return (
        Task.objects.select_related("dataset", "validation", "proof")
        .filter(dataset__name=dataset_name, key=key)
        .first()
    )


def get_answer(task: Task) -> TaskAnswer | None:
    """Return the hidden part of a task. Callers check the role first."""
    return TaskAnswer.objects.filter(task=task).first()


@dataclass(frozen=True, slots=True)
class RunOnTask:
    """Result of one run on a task."""

    run_id: int
    run_name: str
    phase: str
    groups: int
    graded: int
    solved: int
    newest_iteration: int


def runs_on_task(task: Task, limit: int = 50) -> list[RunOnTask]:
    """Return the results of runs on a task, newest run first, with a row for each phase."""
    rows = (
        Group.objects.filter(task=task)
        .exclude(run__in=Run.writing_tests())
        .order_by()
        .values("run_id", "run__name", "phase")
        .annotate(n=Count("id"), graded=Sum("num_graded"), solved=Sum("num_solved"), newest=Max("iteration"))
        .order_by("-run_id", "phase")
        .values_list("run_id", "run__name", "phase", "n", "graded", "solved", "newest")[:limit]
    )
    return [RunOnTask(*row) for row in rows]
