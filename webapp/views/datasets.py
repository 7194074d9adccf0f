"""Datasets and tasks."""

from __future__ import annotations

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from engine.errors import ConfigError, DatasetError
from webapp.contexts.datasets import build_dataset, build_dataset_list, build_task
from webapp.contexts.health import build_health
from webapp.models import Dataset, Task
from webapp.permissions import may_see_answers
from webapp.selectors import datasets as reads
from webapp.services import quarantine, validations
from webapp.views.access import Person, operator, viewer
from webapp.views.pages import page, params_of


def dataset_or_404(name: str) -> Dataset:
    """The dataset, or the 404 page."""
    dataset = reads.get_dataset(name)
    if dataset is None:
        raise Http404(f"There is no dataset called {name}.")
    return dataset


def task_or_404(name: str, key: str) -> Task:
    """The task, or the 404 page."""
    task = reads.get_task(name, key)
    if task is None:
        raise Http404(f"The dataset {name} has no task {key}.")
    return task


@viewer
def dataset_list(request: HttpRequest, person: Person) -> HttpResponse:
    """Every dataset."""
    context = build_dataset_list(can_operate=person.can_operate)
    return page(request, person, "datasets/list.html", context)


@viewer
def dataset_detail(request: HttpRequest, person: Person, name: str) -> HttpResponse:
    """One dataset with its tasks."""
    context = build_dataset(dataset_or_404(name), params_of(request))
    return page(request, person, "datasets/detail.html", context)


@viewer
def task_detail(request: HttpRequest, person: Person, name: str, key: str) -> HttpResponse:
    """One task; the answer for those who may see it."""
    context = build_task(
        task_or_404(name, key), shows_answer=may_see_answers(person.user), can_operate=person.can_operate
    )
    return page(request, person, "datasets/task.html", context)


@viewer
def dataset_health(request: HttpRequest, person: Person, name: str) -> HttpResponse:
    """Is every row true?"""
    context = build_health(dataset_or_404(name), params_of(request), can_operate=person.can_operate)
    return page(request, person, "datasets/health.html", context)


@operator
@require_POST
def dataset_validate(request: HttpRequest, person: Person, name: str) -> HttpResponseRedirect:
    """Start a validation and watch it on the health page."""
    repeats, split = request.POST.get("repeats", ""), request.POST.get("split", "")
    backend = request.POST.get("backend", "")
    try:
        validations.launch(
            name=dataset_or_404(name).name,
            repeats=int(repeats) if repeats.isdecimal() and len(repeats) < 4 else None,
            splits=[split] if split else [],
            rows=request.POST.get("rows") or None,
            overrides={"sandbox.backend": backend} if backend else {},
            actor=person.user,
        )
    except (ConfigError, DatasetError) as error:
        messages.error(request, f"No validation was started: {error}")
    return redirect("dataset-health", name)


@operator
@require_POST
def task_quarantine(request: HttpRequest, person: Person, name: str, key: str) -> HttpResponseRedirect:
    """Put a task into quarantine, or take it out."""
    try:
        quarantine.decide(
            task=task_or_404(name, key),
            quarantined=request.POST.get("quarantined") == "yes",
            reason=request.POST.get("reason", ""),
            actor=person.user,
        )
    except DatasetError as error:
        messages.error(request, f"Nothing was changed: {error}")
    return redirect("task-detail", name, key)
