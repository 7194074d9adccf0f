"""Import of published datasets, and the rows that imports left out."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods

from engine.errors import ConfigError
from webapp.accounts.gate import operator, viewer
from webapp.core.pages import page, params_of, posted_of
from webapp.core.permissions import Person
from webapp.datasets.contexts.imports import build_import_form, build_left_out, overrides_of
from webapp.datasets.views.datasets import dataset_or_404
from webapp.runs.services import dataset_runs


@operator
@require_http_methods(["GET", "HEAD", "POST"])
def import_new(request: HttpRequest, person: Person) -> HttpResponse:
    """Render the form, or start the import and redirect to its run."""
    if request.method != "POST":
        return page(request, person, "datasets/import.html", build_import_form())
    posted = posted_of(request)
    try:
        run = dataset_runs.launch_import(
            format=posted.get("format", ""),
            source=posted.get("source", "").strip(),
            name=posted.get("name", "").strip(),
            overrides=overrides_of(posted),
            actor=person.user,
        )
    except ConfigError as error:
        context = build_import_form(posted, error.problems)
        return page(request, person, "datasets/import.html", context, status=422)
    return redirect("run-detail", run.pk)


@viewer
def dataset_left_out(request: HttpRequest, person: Person, name: str) -> HttpResponse:
    """Render the source rows that are not in the dataset."""
    context = build_left_out(dataset_or_404(name), params_of(request))
    return page(request, person, "datasets/left_out.html", context)
