"""Pages of iterations, groups and trajectories."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render

from webapp.accounts.gate import answer_reader, viewer
from webapp.core.contexts.frame import trajectory_url
from webapp.core.contexts.numbers import MOST_ID, whole
from webapp.core.pages import page, params_of
from webapp.core.permissions import Person, check_rollouts
from webapp.core.services import audit
from webapp.evaluations.selectors import predictions as prediction_reads
from webapp.rollouts.contexts.found import find_text, text_to_find
from webapp.rollouts.contexts.groups import build_group
from webapp.rollouts.contexts.pair import build_pair
from webapp.rollouts.contexts.run_what_if import build_run_what_if
from webapp.rollouts.contexts.steps import WINDOW_CHARS, WINDOW_STEPS, plain_part, whole_part, window
from webapp.rollouts.contexts.token_strips import build_strips
from webapp.rollouts.contexts.token_trace import build_token_trace, explain_token
from webapp.rollouts.contexts.trajectories import build_trajectory
from webapp.rollouts.models.trajectories import Trajectory
from webapp.rollouts.selectors import steps as step_reads
from webapp.rollouts.selectors import trajectories as reads
from webapp.runs.contexts.iterations import build_iteration
from webapp.runs.models.runs import Run
from webapp.runs.views.runs import run_or_404


def _readable_run(person: Person, run_id: int) -> Run:
    """Return the run of the rollouts. Raises PermissionDenied for an oracle's rollouts."""
    run = run_or_404(run_id)
    check_rollouts(run, person.role)
    return run


@viewer
def iteration_detail(
    request: HttpRequest, person: Person, run_id: int, phase: str, iteration: int
) -> HttpResponse:
    """Render an iteration or evaluation with its groups."""
    context = build_iteration(run_or_404(run_id), phase, iteration, params_of(request))
    if context is None:
        raise Http404(f"Run {run_id} has nothing in {phase} {iteration}.")
    return page(request, person, "rollouts/iterations/detail.html", context)


@viewer
def group_detail(
    request: HttpRequest, person: Person, run_id: int, phase: str, iteration: int, task_key: str
) -> HttpResponse:
    """Render a group: the rollouts of one task side by side."""
    context = build_group(
        _readable_run(person, run_id),
        phase=phase,
        iteration=iteration,
        task_key=task_key,
        params=params_of(request),
    )
    if context is None:
        raise Http404(f"Run {run_id} has no group of task {task_key} in {phase} {iteration}.")
    return page(request, person, "rollouts/groups/detail.html", context)


@viewer
def run_what_if(request: HttpRequest, person: Person, run_id: int) -> HttpResponse:
    """Render what a run's updates would have trained on under another objective."""
    context = build_run_what_if(_readable_run(person, run_id), params_of(request))
    return page(request, person, "rollouts/iterations/what_if.html", context)


@viewer
def step_example(request: HttpRequest, person: Person, run_id: int) -> HttpResponse:
    """Redirect to the training rollout with the most thinking in a range of iterations and steps."""
    run = _readable_run(person, run_id)
    iterations, steps = (_range_of(params_of(request).get(name, "")) for name in ("iterations", "steps"))
    if iterations is None or steps is None:
        raise Http404("Name iterations and steps, as ?iterations=0-3&steps=12-12.")
    found = reads.most_thinking(run.pk, iterations=iterations, steps=steps)
    if found is None:
        raise Http404(f"Run {run_id} has no such step.")
    row, step = found
    address = trajectory_url(run.pk, row.phase, row.iteration, row.task_key, row.index)
    return redirect(f"{address}?from={step}#step-{step}")


def _range_of(text: str) -> tuple[int, int] | None:
    first, last = (whole(part) for part in text.partition("-")[::2])
    return None if first is None or last is None else (first, last)


@viewer
def trajectory_detail(
    request: HttpRequest, person: Person, run_id: int, phase: str, iteration: int, task_key: str, index: int
) -> HttpResponse:
    """Render a rollout with all its steps, those from ``from`` on in full."""
    params = params_of(request)
    context = build_trajectory(
        _readable_run(person, run_id),
        phase=phase,
        iteration=iteration,
        task_key=task_key,
        index=index,
        role=person.role,
        user_id=person.user.pk,
        start=whole(params.get("from", "")) or 0,
        find=text_to_find(params),
        with_forms=person.can_operate,
    )
    if context is None:
        raise Http404(f"Run {run_id} has no rollout {index} of task {task_key} in {phase} {iteration}.")
    return page(request, person, "rollouts/trajectories/detail.html", context)


def readable_trajectory(person: Person, trajectory_id: int) -> Trajectory:
    """Return the trajectory. Raises Http404, or PermissionDenied for an oracle's rollout."""
    trajectory = reads.get_by_id(trajectory_id)
    if trajectory is None:
        raise Http404("There is no such trajectory.")
    _readable_run(person, trajectory.run_id)
    return trajectory


@viewer
def found(request: HttpRequest, person: Person, trajectory_id: int) -> HttpResponse:
    """Render the occurrences of the text ``find`` in a rollout's steps."""
    trajectory = readable_trajectory(person, trajectory_id)
    text = text_to_find(params_of(request))
    hits = find_text(trajectory.pk, text) if text else None
    return render(request, "rollouts/trajectories/_found.html", {"found": hits})


@viewer
def step_window(request: HttpRequest, person: Person, trajectory_id: int) -> HttpResponse:
    """Return steps in full from ``from`` on as HTML, for a page that shows them as one line each."""
    readable_trajectory(person, trajectory_id)
    start = whole(params_of(request).get("from", "")) or 0
    rows = step_reads.steps(trajectory_id, start=start, limit=WINDOW_STEPS)
    return render(request, "rollouts/trajectories/_window.html", {"views": window(rows, chars=WINDOW_CHARS)})


@viewer
def step_text(
    request: HttpRequest, person: Person, trajectory_id: int, index: int, part: str
) -> HttpResponse:
    """Return a complete part of a step: as plain text, or with ``html`` as the page shows it."""
    step = step_reads.get_step(trajectory_id, index)
    if step is None:
        raise Http404("There is no such step.")
    _readable_run(person, step.trajectory.run_id)
    if "html" in request.GET:
        return render(request, "rollouts/trajectories/_whole.html", {"part": part, **whole_part(step, part)})
    return HttpResponse(plain_part(step, part), content_type="text/plain; charset=utf-8")


@viewer
def trajectory_tokens(request: HttpRequest, person: Person, trajectory_id: int) -> HttpResponse:
    """Render the sampled tokens of a trained rollout, with the arithmetic of their gradients."""
    context = build_token_trace(readable_trajectory(person, trajectory_id), params_of(request))
    return page(request, person, "rollouts/trajectories/tokens.html", context)


@viewer
def token_strips(request: HttpRequest, person: Person, trajectory_id: int) -> HttpResponse:
    """Return the strips of sampled tokens under the steps of a trained rollout, as JSON for its page."""
    strips = build_strips(readable_trajectory(person, trajectory_id), params_of(request).get("by", ""))
    if strips is None:
        raise Http404(f"The trainer recorded no tokens of rollout {trajectory_id}.")
    return JsonResponse(strips)


@viewer
def token_arithmetic(request: HttpRequest, person: Person, trajectory_id: int, number: int) -> HttpResponse:
    """Render the arithmetic of one sampled token."""
    token = explain_token(readable_trajectory(person, trajectory_id), number)
    if token is None:
        raise Http404(f"Rollout {trajectory_id} has no recorded token {number}.")
    return render(request, "rollouts/trajectories/_token.html", {"token": token})


@viewer
def patch(
    request: HttpRequest,  # noqa: ARG001
    person: Person,
    trajectory_id: int,
) -> HttpResponse:
    """Return the complete patch of a rollout as plain text."""
    trajectory = readable_trajectory(person, trajectory_id)
    return HttpResponse(trajectory.patch, content_type="text/plain; charset=utf-8")


@answer_reader
def test_log(
    request: HttpRequest,  # noqa: ARG001
    person: Person,  # noqa: ARG001
    trajectory_id: int,
) -> HttpResponse:
    """Return the complete test log as plain text; it may contain hidden tests."""
    text = reads.test_log(trajectory_id)
    if text is None:
        raise Http404("There is no such trajectory.")
    return HttpResponse(text, content_type="text/plain; charset=utf-8")


@viewer
def predictions(request: HttpRequest, person: Person, run_id: int) -> HttpResponse:
    """Return ``predictions.jsonl`` for the official harness."""
    run, choice = _chosen(request, _readable_run(person, run_id))
    lines = "".join(prediction.line() for prediction in prediction_reads.predictions(run, choice))
    if run.plays_answers:
        audit.record(actor=person.user, action="answers.export", run_id=run_id, target="predictions")
    response = HttpResponse(lines, content_type="application/x-ndjson; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="run-{run_id}.predictions.jsonl"'
    return response


@viewer
def harness_report(request: HttpRequest, person: Person, run_id: int) -> HttpResponse:  # noqa: ARG001
    """Return the run report in the official harness's schema."""
    run, choice = _chosen(request, run_or_404(run_id))
    response = JsonResponse(prediction_reads.report(run, choice), json_dumps_params={"indent": 4})
    response["Content-Disposition"] = f'attachment; filename="trainyard-run-{run_id}.report.json"'
    return response


def _chosen(request: HttpRequest, run: Run) -> tuple[Run, prediction_reads.Choice]:
    params = params_of(request)
    iteration, index = params.get("iteration", ""), params.get("index", "")
    choice = None
    if not any(text and whole(text) is None for text in (iteration, index)):
        choice = prediction_reads.choose(
            run, phase=params.get("phase", ""), iteration=whole(iteration), index=whole(index) or 0
        )
    if choice is None:
        raise Http404(f"Run {run.pk} has no such finished rollouts.")
    return run, choice


@viewer
def trajectory_compare(request: HttpRequest, person: Person) -> HttpResponse:
    """Render the rollouts ``left`` and ``right`` side by side, their steps aligned."""
    params = params_of(request)
    numbers = [whole(params.get(name, ""), most=MOST_ID) for name in ("left", "right")]
    if None in numbers:
        raise Http404("Name two trajectories, as ?left=12&right=15.")
    left, right = (readable_trajectory(person, number or 0) for number in numbers)
    return page(request, person, "rollouts/trajectories/compare.html", build_pair(left, right, params))
