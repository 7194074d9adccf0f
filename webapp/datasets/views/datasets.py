"""Pages of datasets and tasks."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_POST

from engine.errors import ConfigError, DatasetError
from webapp.accounts.gate import operator, viewer
from webapp.core.pages import page, params_of, posted_of
from webapp.core.permissions import Person
from webapp.datasets.contexts.datasets import build_dataset, build_dataset_list, build_task
from webapp.datasets.contexts.health import build_health
from webapp.datasets.models.datasets import Dataset, Task
from webapp.datasets.selectors import datasets as reads
from webapp.datasets.services import quarantine
from webapp.runs.services import dataset_runs


def dataset_or_404(name: str) -> Dataset:
    """Return the dataset. Raises Http404."""
    dataset = reads.get_dataset(name)
    if dataset is None:
        raise Http404(f"There is no dataset called {name}.")
    return dataset


def task_or_404(name: str, key: str) -> Task:
    """Return the task. Raises Http404."""
    task = reads.get_task(name, key)
    if task is None:
        raise Http404(f"The dataset {name} has no task {key}.")
    return task


@viewer
def dataset_list(request: HttpRequest, person: Person) -> HttpResponse:
    """Render the list of datasets."""
    context = build_dataset_list(can_operate=person.can_operate)
    return page(request, person, "datasets/list.html", context)


@viewer
def dataset_detail(request: HttpRequest, person: Person, name: str) -> HttpResponseBase:
    """Render a dataset; ``import`` and ``new`` lead to the import form unless datasets have these names."""
    if name in ("import", "new") and reads.get_dataset(name) is None:
        return redirect("import-new")
    context = build_dataset(dataset_or_404(name), params_of(request), can_operate=person.can_operate)
    return page(request, person, "datasets/detail.html", context)


@viewer
def task_detail(request: HttpRequest, person: Person, name: str, key: str) -> HttpResponse:
    """Render a task, with its answer for persons who may see it."""
    context = build_task(
        task_or_404(name, key), shows_answer=person.role.sees_answers, can_operate=person.can_operate
    )
    return page(request, person, "datasets/task.html", context)


@viewer
def dataset_health(request: HttpRequest, person: Person, name: str) -> HttpResponse:
    """Render the validation results of a dataset."""
    context = build_health(dataset_or_404(name), params_of(request), can_operate=person.can_operate)
    return page(request, person, "datasets/health.html", context)


@operator
@require_POST
def dataset_validate(request: HttpRequest, person: Person, name: str) -> HttpResponseRedirect:
    """Start a validation and redirect to the health page."""
    posted = posted_of(request)
    settings = {
        setting: posted[field]
        for field, setting in (
            ("backend", "sandbox.backend"),
            ("repeats", "validation.repeats"),
            ("wrong_patches", "validation.wrong_patches"),
        )
        if posted.get(field)
    }
    try:
        dataset_runs.launch_validation(
            name=dataset_or_404(name).name,
            splits=[posted["split"]] if posted.get("split") else [],
            rows=posted.get("rows") or None,
            overrides=settings,
            actor=person.user,
        )
    except (ConfigError, DatasetError) as error:
        messages.error(request, f"No validation was started: {error}")
    return redirect("dataset-health", name)


@operator
@require_POST
def dataset_harden(request: HttpRequest, person: Person, name: str) -> HttpResponseRedirect:
    """Start a hardening and redirect to its run."""
    posted = posted_of(request)
    runs = posted.get("alternatives_of", "").replace(",", " ").split()
    settings: dict[str, Any] = {
        setting: value
        for value, setting in (
            (posted.get("backend"), "sandbox.backend"),
            (posted.get("wrong_patches"), "curation.wrong_patches"),
            (posted.get("max_tests"), "curation.max_tests"),
            (runs, "curation.alternatives_of"),
        )
        if value
    }
    try:
        run = dataset_runs.launch_hardening(
            name=dataset_or_404(name).name,
            output=posted.get("output", ""),
            overrides=settings,
            actor=person.user,
        )
    except (ConfigError, DatasetError) as error:
        messages.error(request, f"No hardening was started: {error}")
        chosen = {"recipe": "hardened-dataset", "curation.dataset": name, **settings}
        chosen["curation.output"] = posted.get("output", "")
        return redirect(f"{reverse('run-new')}?{urlencode(chosen, doseq=True)}")
    return redirect("run-detail", run.pk)


@operator
@require_POST
def task_quarantine(request: HttpRequest, person: Person, name: str, key: str) -> HttpResponseRedirect:
    """Quarantine a task or release it."""
    posted = posted_of(request)
    try:
        quarantine.decide(
            task=task_or_404(name, key),
            quarantined=posted.get("quarantined") == "yes",
            reason=posted.get("reason", ""),
            actor=person.user,
        )
    except DatasetError as error:
        messages.error(request, f"Nothing was changed: {error}")
    return redirect("task-detail", name, key)
