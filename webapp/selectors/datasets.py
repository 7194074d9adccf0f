"""Reads of datasets and tasks."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Count, Max, Q, QuerySet, Sum

from webapp.models import Dataset, Group, Task, TaskAnswer
from webapp.selectors.paging import Page, paginate


def list_datasets() -> list[Dataset]:
    """Every dataset with the number of runs on it as ``num_runs``."""
    return list(Dataset.objects.annotate(num_runs=Count("runs")).order_by("name"))


def get_dataset(name: str) -> Dataset | None:
    """One dataset with the run that made it."""
    return Dataset.objects.select_related("run").filter(name=name).first()


def list_tasks(dataset: Dataset, *, split: str, q: str, number: int, size: int = 50) -> Page[Task]:
    """Tasks in the dataset's order with ``graded``, ``solved`` over all training and evaluation groups."""
    tasks: QuerySet[Task] = Task.objects.filter(dataset=dataset, active=True)
    if split:
        tasks = tasks.filter(split=split)
    if q:
        tasks = tasks.filter(Q(instance_id__icontains=q) | Q(repo__icontains=q) | Q(key=q))
    tasks = tasks.defer("problem_statement").annotate(
        graded=Sum("groups__num_graded"), solved=Sum("groups__num_solved")
    )
    return paginate(tasks.order_by("position", "id"), number=number, size=size)


def get_task(dataset_name: str, key: str) -> Task | None:
    """One task of a dataset, active or not."""
    return Task.objects.select_related("dataset").filter(dataset__name=dataset_name, key=key).first()


def get_answer(task: Task) -> TaskAnswer | None:
    """The gold-bearing half. Callers check the role first."""
    return TaskAnswer.objects.filter(task=task).first()


@dataclass(frozen=True, slots=True)
class RunOnTask:
    """How one run fared on a task."""

    run_id: int
    run_name: str
    phase: str
    groups: int
    graded: int
    solved: int
    newest_iteration: int


def runs_on_task(task: Task, limit: int = 50) -> list[RunOnTask]:
    """Runs that tried a task, newest first, training and evaluations apart."""
    rows = (
        Group.objects.filter(task=task)
        .order_by()
        .values("run_id", "run__name", "phase")
        .annotate(n=Count("id"), graded=Sum("num_graded"), solved=Sum("num_solved"), newest=Max("iteration"))
        .order_by("-run_id", "phase")
        .values_list("run_id", "run__name", "phase", "n", "graded", "solved", "newest")[:limit]
    )
    return [RunOnTask(*row) for row in rows]
