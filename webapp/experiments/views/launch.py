"""Launch of an experiment: form, check, creation of its runs."""

from __future__ import annotations

from collections.abc import Mapping

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods

from engine.errors import ConfigError, Problem
from webapp.accounts.gate import operator
from webapp.core.contexts.numbers import MOST_ID, whole
from webapp.core.pages import page, posted_of
from webapp.core.permissions import Person, check_change
from webapp.experiments import selectors as reads
from webapp.experiments import services as experiments
from webapp.experiments.contexts.launch_form import LaunchFormContext, build_launch_form, posted_design
from webapp.experiments.contexts.power import posted_power
from webapp.experiments.designs import parse_seeds
from webapp.experiments.models import Experiment
from webapp.experiments.views.experiments import experiment_or_404, parse_budget
from webapp.runs.services import experiment_runs
from webapp.runs.services.experiment_runs import Launched
from webapp.runs.services.states import IllegalTransitionError

_TEMPLATE = "experiments/launch.html"


@operator
@require_http_methods(["GET", "HEAD", "POST"])
def experiment_new(request: HttpRequest, person: Person) -> HttpResponse:
    """Render the form of a new experiment, or create and launch it."""
    return _answer(request, person, None)


@operator
@require_http_methods(["GET", "HEAD", "POST"])
def experiment_launch(request: HttpRequest, person: Person, experiment_id: int) -> HttpResponse:
    """Render the form of an experiment, or queue what is missing of its arms and seeds."""
    return _answer(request, person, experiment_or_404(experiment_id))


def _answer(request: HttpRequest, person: Person, experiment: Experiment | None) -> HttpResponse:
    if request.method != "POST":
        return page(request, person, _TEMPLATE, build_launch_form(experiment))
    posted = posted_of(request)
    then = posted.get("then", "")
    shown = None if then == "continue" else posted
    if then == "add":
        return page(request, person, _TEMPLATE, build_launch_form(experiment, posted))
    try:
        if then == "power":
            return page(request, person, _TEMPLATE, _with_power(experiment, posted))
        with transaction.atomic():
            target, launched = _launch(person, experiment, posted)
            transaction.set_rollback(then == "check")
    except (ConfigError, IllegalTransitionError) as error:
        refused = error.problems if isinstance(error, ConfigError) else (Problem(str(error)),)
        context = build_launch_form(experiment, shown, refused=refused)
        return page(request, person, _TEMPLATE, context, status=422)
    words = f"{len(launched.created)} created, {len(launched.continued)} continued"
    if then == "check":
        context = build_launch_form(experiment, posted, checked=f"All settings are valid. Runs: {words}.")
        return page(request, person, _TEMPLATE, context)
    messages.success(request, f"Runs queued: {words}.")
    return redirect("experiment-detail", target.pk)


def _with_power(experiment: Experiment | None, posted: Mapping[str, str]) -> LaunchFormContext:
    """Return the form with the power of the posted seeds. Raises ConfigError."""
    number = whole(posted.get("spread_of", ""), most=MOST_ID)
    spread_of = reads.get_experiment(number) if number is not None else None
    seeds = len(parse_seeds(posted.get("seeds", "")))
    power = posted_power(posted, experiment=spread_of, seeds=seeds)
    return build_launch_form(experiment, posted, power=power)


def _launch(
    person: Person, experiment: Experiment | None, posted: Mapping[str, str]
) -> tuple[Experiment, Launched]:
    """Launch the posted design, or continue the last one; create the experiment where it is new."""
    design = None if posted.get("then") == "continue" else posted_design(posted)
    if experiment is None:
        texts = {name: posted.get(name, "") for name in ("name", "goal", "hypothesis")}
        budget = parse_budget(posted.get("max_rollouts"))
        experiment = experiments.create(**texts, max_rollouts=budget, actor=person.user)
    for run in experiment_runs.continuable(experiment, design):
        check_change(run, person.role, person.user.pk)
    return experiment, experiment_runs.launch(experiment=experiment, design=design, actor=person.user)
