"""Pages of evaluations: the report of one, its submission, two compared, and one task of both."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse

from engine.errors import ConfigError, MissingScoreError
from webapp.accounts.gate import answer_reader, viewer
from webapp.core.pages import page, params_of
from webapp.core.permissions import Person, check_rollouts
from webapp.core.services import audit
from webapp.evaluations.contexts.comparison import build_compare
from webapp.evaluations.contexts.report import build_report
from webapp.evaluations.contexts.submission import build_submission, submission_of
from webapp.evaluations.contexts.task import build_task_comparison
from webapp.rollouts.selectors.attempts import Point, has_rollouts
from webapp.runs.views.runs import run_or_404


@viewer
def evaluation_report(
    request: HttpRequest, person: Person, run_id: int, phase: str, iteration: int
) -> HttpResponse:
    """Render the report of an evaluation, or of the rollouts of an iteration."""
    point = _point_or_404(run_id, phase, iteration)
    return page(request, person, "evaluations/report.html", build_report(point, params_of(request)))


def _point_or_404(run_id: int, phase: str, iteration: int) -> Point:
    point = Point(run=run_or_404(run_id), phase=phase, iteration=iteration)
    if not has_rollouts(point):
        raise Http404(f"Run {run_id} has no rollouts in {phase} {iteration}.")
    return point


@answer_reader
def evaluation_submission(
    request: HttpRequest, person: Person, run_id: int, phase: str, iteration: int
) -> HttpResponse:
    """Render the form that describes a submission, and the submission's problems."""
    point = _point_or_404(run_id, phase, iteration)
    return page(request, person, "evaluations/submission.html", build_submission(point, params_of(request)))


@answer_reader
def evaluation_submission_zip(
    request: HttpRequest, person: Person, run_id: int, phase: str, iteration: int
) -> HttpResponseBase:
    """Return the submission folder as a ZIP archive; its logs may contain hidden tests."""
    point, params = _point_or_404(run_id, phase, iteration), params_of(request)
    try:
        submission = submission_of(point, params)
        archive = submission.archive()
    except (ConfigError, MissingScoreError) as error:
        context = build_submission(point, params, error=str(error))
        return page(request, person, "evaluations/submission.html", context, status=422)
    audit.record(actor=person.user, action="submission.export", run_id=run_id, target=f"{phase} {iteration}")
    response = StreamingHttpResponse(archive, content_type="application/zip")
    response["Content-Disposition"] = f'attachment; filename="{submission.folder}.zip"'
    return response


@viewer
def evaluation_compare(request: HttpRequest, person: Person) -> HttpResponse:
    """Render a comparison of two evaluations, and the form that chooses them."""
    return page(request, person, "evaluations/compare.html", build_compare(params_of(request)))


@viewer
def evaluation_compare_task(request: HttpRequest, person: Person, task_key: str) -> HttpResponse:
    """Render the rollouts of one task in two evaluations side by side."""
    context = build_task_comparison(task_key, params_of(request))
    for side in context.sides:
        check_rollouts(side.point.run, person.role)
    return page(request, person, "evaluations/task.html", context)
