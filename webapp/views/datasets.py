"""Datasets and tasks."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse

from webapp.contexts.datasets import build_dataset, build_dataset_list, build_task
from webapp.permissions import may_see_answers
from webapp.selectors import datasets as reads
from webapp.views.access import Person, viewer
from webapp.views.pages import page, params_of


@viewer
def dataset_list(request: HttpRequest, person: Person) -> HttpResponse:
    """Every dataset."""
    context = build_dataset_list(can_operate=person.can_operate)
    return page(request, person, "datasets/list.html", context)


@viewer
def dataset_detail(request: HttpRequest, person: Person, name: str) -> HttpResponse:
    """One dataset with its tasks."""
    dataset = reads.get_dataset(name)
    if dataset is None:
        raise Http404(f"There is no dataset called {name}.")
    return page(request, person, "datasets/detail.html", build_dataset(dataset, params_of(request)))


@viewer
def task_detail(request: HttpRequest, person: Person, name: str, key: str) -> HttpResponse:
    """One task; the answer for those who may see it."""
    task = reads.get_task(name, key)
    if task is None:
        raise Http404(f"The dataset {name} has no task {key}.")
    context = build_task(task, shows_answer=may_see_answers(person.user))
    return page(request, person, "datasets/task.html", context)
