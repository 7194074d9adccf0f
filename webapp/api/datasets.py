"""Datasets and tasks for scripts; answers only for those allowed to see them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Router, Schema
from ninja.errors import HttpError

from webapp.api.auth import caller, operator, viewer
from webapp.models import Dataset, Task, TaskAnswer
from webapp.permissions import may_see_answers
from webapp.selectors import datasets as reads
from webapp.services import datasets as writes

router = Router(tags=["datasets"])


class DatasetOut(Schema):
    """A dataset."""

    name: str
    num_tasks: int
    splits: dict[str, int]
    provenance: dict[str, Any]
    run_id: int | None
    synced_at: datetime | None


class TaskOut(Schema):
    """A task without its answer."""

    key: str
    instance_id: str
    split: str
    repo: str
    base_commit: str
    problem_statement: str
    image: str
    difficulty: dict[str, float]


class AnswerOut(Schema):
    """What grading knows and agents do not."""

    gold_patch: str
    fail_to_pass: list[str]
    pass_to_pass: list[str]
    test_command: str
    deterministic: bool


class TaskDetail(TaskOut):
    """A task; ``answer`` is null for those who may not see it."""

    metadata: dict[str, Any]
    answer: AnswerOut | None = None


class TaskPage(Schema):
    """One page of tasks and how many there are."""

    total: int
    items: list[TaskOut]


def find(name: str) -> Dataset:
    """The dataset, or 404."""
    dataset = reads.get_dataset(name)
    if dataset is None:
        raise HttpError(404, f"there is no dataset '{name}'")
    return dataset


@router.get("/datasets", auth=viewer, response=list[DatasetOut])
def list_datasets(request: HttpRequest) -> list[Dataset]:
    """Every dataset."""
    return reads.list_datasets()


@router.get("/datasets/{name}", auth=viewer, response=DatasetOut)
def get_dataset(request: HttpRequest, name: str) -> Dataset:
    """One dataset."""
    return find(name)


@router.post("/datasets/{name}/sync", auth=operator, response=DatasetOut)
def sync_dataset(request: HttpRequest, name: str) -> Dataset:
    """Bring the tables up to date with the dataset's folder."""
    return writes.sync(name=name, actor=caller(request))


@router.get("/datasets/{name}/tasks", auth=viewer, response=TaskPage)
def list_tasks(
    request: HttpRequest, name: str, split: str = "", q: str = "", page: int = 1, size: int = 50
) -> dict[str, Any]:
    """Tasks of a dataset, in its order."""
    found = reads.list_tasks(find(name), split=split, q=q, number=page, size=max(1, min(size, 200)))
    return {"total": found.total, "items": list(found.rows)}


@router.get("/datasets/{name}/tasks/{key}", auth=viewer, response=TaskDetail)
def get_task(request: HttpRequest, name: str, key: str) -> TaskDetail:
    """One task."""
    task = Task.objects.filter(dataset=find(name), key=key).first()
    if task is None:
        raise HttpError(404, f"dataset '{name}' has no task '{key}'")
    detail = TaskDetail.from_orm(_Visible(task))
    if may_see_answers(caller(request)):
        answer = TaskAnswer.objects.filter(pk=task.pk).first()
        detail.answer = AnswerOut.from_orm(answer) if answer is not None else None
    return detail


class _Visible:
    """A task seen without its answer: nothing serialises the answer by following a relation."""

    answer = None

    def __init__(self, task: Task) -> None:
        self._task = task

    def __getattr__(self, name: str) -> object:
        return getattr(self._task, name)
