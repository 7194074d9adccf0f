"""Comparison of runs, and the points of runs' charts."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect
from django.utils.cache import patch_cache_control

from webapp.accounts.gate import viewer
from webapp.core.pages import page, params_of
from webapp.core.permissions import Person
from webapp.experiments.contexts.run_comparison import (
    build_run_comparison,
    build_series,
    comparison_url,
    parse_runs,
)
from webapp.experiments.contexts.tasks_of_runs import build_tasks_of_runs
from webapp.runs.contexts.chart_points import build_chart_part
from webapp.runs.views.runs import run_or_404


def _named(request: HttpRequest) -> list[str]:
    """Return the runs of the query string: ``runs=1,2`` from links, ``run=1&run=2`` from check boxes."""
    return [*request.GET.getlist("runs"), *request.GET.getlist("run")]


@viewer
def run_compare(request: HttpRequest, person: Person) -> HttpResponse:
    """Render a comparison of runs; selections by check boxes are redirected to a URL to share."""
    if "run" in request.GET:
        numbers, _ = parse_runs(_named(request))
        view = {key: value for key, value in params_of(request).items() if key not in ("run", "runs")}
        return redirect(comparison_url(numbers, **view))
    context = build_run_comparison(_named(request), params_of(request))
    return page(request, person, "experiments/compare/detail.html", context)


@viewer
def run_tasks(request: HttpRequest, person: Person) -> HttpResponse:
    """Render the tasks of some runs with the share of rollouts that solved them."""
    context = build_tasks_of_runs(_named(request), params_of(request), person.role)
    return page(request, person, "experiments/compare/tasks.html", context)


@viewer
def run_series(request: HttpRequest, person: Person) -> HttpResponse:  # noqa: ARG001 (the gate's signature)
    """Return the points of some charts of some runs."""
    return _points(lambda: build_series(_named(request), params_of(request)))


@viewer
def run_points(request: HttpRequest, person: Person, run_id: int) -> HttpResponse:  # noqa: ARG001
    """Return the points of a part of one run's charts."""
    run = run_or_404(run_id)
    return _points(lambda: build_chart_part(run.pk, params_of(request)))


def _points(build: Callable[[], dict[str, object]]) -> HttpResponse:
    try:
        answer = JsonResponse(build())
    except ValueError as error:
        return JsonResponse({"detail": str(error)}, status=400)
    patch_cache_control(answer, private=True, max_age=5)
    return answer
