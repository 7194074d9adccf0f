"""Pages of evaluations: the report of one, and two compared."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse

from webapp.contexts.evaluation_comparison import build_compare
from webapp.contexts.evaluation_report import build_report
from webapp.views.access import Person, viewer
from webapp.views.pages import page, params_of
from webapp.views.runs import run_or_404


@viewer
def evaluation_report(
    request: HttpRequest, person: Person, run_id: int, phase: str, iteration: int
) -> HttpResponse:
    """Render the report of an evaluation, or of the rollouts of an iteration."""
    context = build_report(run_or_404(run_id), phase, iteration, params_of(request))
    if context is None:
        raise Http404(f"Run {run_id} has no rollouts in {phase} {iteration}.")
    return page(request, person, "evaluations/report.html", context)


@viewer
def evaluation_compare(request: HttpRequest, person: Person) -> HttpResponse:
    """Render a comparison of two evaluations, and the form that chooses them."""
    return page(request, person, "evaluations/compare.html", build_compare(params_of(request)))
