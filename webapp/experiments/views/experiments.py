"""Pages of experiments."""

from __future__ import annotations

from collections.abc import Collection

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from engine.errors import ConfigError, Problem
from webapp.accounts.gate import operator, viewer
from webapp.core.contexts.numbers import whole
from webapp.core.pages import page, params_of, posted_of
from webapp.core.permissions import Person, check_change
from webapp.experiments import selectors as reads
from webapp.experiments import services as experiments
from webapp.experiments.contexts.experiments import build_experiment, build_experiment_list
from webapp.experiments.models import Experiment
from webapp.experiments.services import TextsConflictError
from webapp.runs.services import batches, states
from webapp.runs.services.states import IllegalTransitionError

STATES: dict[str, Collection[str]] = {"stop": states.IN_PROGRESS, "archive": list(states.TRANSITIONS)}
"""Action → states of the runs that it changes."""


def experiment_or_404(experiment_id: int) -> Experiment:
    """Return the experiment. Raises Http404."""
    experiment = reads.get_experiment(experiment_id)
    if experiment is None:
        raise Http404(f"There is no experiment {experiment_id}.")
    return experiment


def parse_budget(text: str | None) -> int | None:
    """Return the budget of a form, 0 for an empty field, None without the field. Raises ConfigError."""
    if text is None:
        return None
    number = whole(text.strip() or "0", most=experiments.MOST_ROLLOUTS)
    if number is None:
        raise ConfigError(Problem(f"expected a number of rollouts, not '{text[:40]}'", "max_rollouts"))
    return number


@viewer
def experiment_list(request: HttpRequest, person: Person) -> HttpResponse:
    """Render the list of experiments."""
    return page(request, person, "experiments/list.html", build_experiment_list())


@viewer
def experiment_detail(request: HttpRequest, person: Person, experiment_id: int) -> HttpResponse:
    """Render an experiment with a comparison of its arms and runs."""
    experiment = experiment_or_404(experiment_id)
    context = build_experiment(experiment, params_of(request), role=person.role, user_id=person.user.pk)
    return page(request, person, "experiments/detail.html", context)


@operator
@require_POST
def experiment_edit(request: HttpRequest, person: Person, experiment_id: int) -> HttpResponse:
    """Change goal, hypothesis and conclusion; 409 with the sent texts if they were edited meanwhile."""
    form = posted_of(request)
    texts = {name: form.get(name) for name in experiments.TEXTS}
    experiment = experiment_or_404(experiment_id)
    try:
        experiments.edit(
            experiment=experiment,
            texts=texts,
            max_rollouts=parse_budget(form.get("max_rollouts")),
            version=form.get("version"),
            actor=person.user,
        )
    except ConfigError as error:
        messages.error(request, f"Nothing was changed: {error}")
    except TextsConflictError:
        context = build_experiment(
            experiment_or_404(experiment_id), {}, role=person.role, user_id=person.user.pk, sent=form
        )
        return page(request, person, "experiments/detail.html", context, status=409)
    return redirect("experiment-detail", experiment_id)


@operator
@require_POST
def experiment_action(request: HttpRequest, person: Person, experiment_id: int, action: str) -> HttpResponse:
    """Stop or archive the runs of an experiment."""
    runs = reads.runs_in_states(experiment_or_404(experiment_id), STATES[action])
    for run in runs:
        check_change(run, person.role, person.user.pk)
    try:
        batches.change_all(batch=runs, action=action, actor=person.user)
    except IllegalTransitionError as error:
        messages.error(request, f"Nothing was changed: {error}")
    return redirect("experiment-detail", experiment_id)
