"""New-run form: recipe, settings, experiment; or a clone of another run with changes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from engine.config.contradictions import LintFinding
from engine.config.run import parse_run_config, policy_type
from engine.errors import ConfigError, Problem
from webapp.accounts.gate import operator
from webapp.core.contexts.frame import Crumb
from webapp.core.contexts.numbers import MOST_ID, whole
from webapp.core.pages import page, params_of, posted_of
from webapp.core.permissions import Person
from webapp.experiments.models import Experiment
from webapp.runs.contexts.forms.bases import rebase, recipe_base
from webapp.runs.contexts.forms.chosen import ChosenView, build_chosen
from webapp.runs.contexts.forms.differences import count_differences
from webapp.runs.contexts.forms.form import FormSection, check, form_sections, parse_overrides
from webapp.runs.contexts.forms.new_run import RunFormContext, recipe_choices
from webapp.runs.contexts.forms.offers import run_offers
from webapp.runs.contexts.forms.plan import PlanView, build_plan
from webapp.runs.contexts.forms.short_forms import SHORT_FORMS, arrange, derive, from_collection, from_dataset
from webapp.runs.models.runs import Run
from webapp.runs.selectors import runs as run_reads
from webapp.runs.services import runs as run_writes
from webapp.runs.services.states import IllegalTransitionError
from webapp.runs.views.runs import run_or_404


@operator
@require_http_methods(["GET", "HEAD", "POST"])
def run_new(request: HttpRequest, person: Person) -> HttpResponse:
    """Render the form, or create the run and redirect to its page.

    Settings in the query string are entered in the form: ``?recipe=collect&dataset.name=quickstart``, also
    those of the plan: ``?recipe=deepswe-32b&plan.gpus=64xH100&assume.mfu=0.3``.
    """
    data = posted_of(request) if request.method == "POST" else params_of(request)
    clone = whole(data.get("clone", ""), most=MOST_ID)
    parent = run_or_404(clone) if clone is not None else None
    recipe = parent.recipe if parent else data.get("recipe", "")
    if request.method != "POST":
        experiment = whole(data.get("experiment", ""), most=MOST_ID)
        entered = {key: value for key, value in data.items() if "." in key}
        context = _context(recipe, parent, entered, (), parent.experiment_id if parent else experiment)
        return page(request, person, "runs/form/new.html", context)
    return _create(request, person, recipe, parent, data)


def _create(
    request: HttpRequest, person: Person, recipe: str, parent: Run | None, posted: Mapping[str, str]
) -> HttpResponse:
    chosen = whole(posted.get("experiment", ""), most=MOST_ID)
    experiment = Experiment.objects.filter(pk=chosen).first() if chosen is not None else None
    try:
        context = _context(recipe, parent, posted, (), experiment.pk if experiment else None)
        if posted.get("then") == "check":
            return page(request, person, "runs/form/new.html", context)
        overrides = {**_followed(context), **parse_overrides(context.sections + context.others)}
        run = _make(person, recipe, parent, overrides, experiment, start=posted.get("then") == "start")
    except (ConfigError, IllegalTransitionError) as error:
        problems = error.problems if isinstance(error, ConfigError) else (Problem(str(error)),)
        context = _context(recipe, parent, posted, problems, experiment.pk if experiment else None)
        return page(request, person, "runs/form/new.html", context, status=422)
    return redirect("run-detail", run.pk)


def _followed(context: RunFormContext) -> dict[str, str]:
    """Return what the form says of settings that follow from the dataset, also where that is the recipe's."""
    fields = (field for section in context.sections + context.others for field in section.fields)
    names = {name for name in json.loads(context.derived) if name.startswith(("sandbox.", "grading."))}
    return {field.key: field.value for field in fields if field.key in names}


@transaction.atomic
def _make(
    person: Person,
    recipe: str,
    parent: Run | None,
    overrides: Mapping[str, Any],
    experiment: Experiment | None,
    *,
    start: bool,
) -> Run:
    """Create and optionally start the run in one transaction."""
    if parent is not None:
        run = run_writes.clone(run=parent, overrides=overrides, actor=person.user)
    else:
        run = run_writes.create(recipe=recipe, overrides=overrides, actor=person.user, experiment=experiment)
    if start:
        run_writes.start(run=run, actor=person.user)
    return run


def _base(recipe: str, parent: Run | None) -> dict[str, Any] | None:
    """Return the configuration that the form's settings are compared with; None without a recipe."""
    try:
        if parent is not None:
            return parse_run_config(parent.config).model_dump(mode="json")
        return recipe_base(recipe) if recipe else None
    except ConfigError as unusable:
        raise Http404(str(unusable)) from unusable


def _context(
    recipe: str,
    parent: Run | None,
    posted: Mapping[str, str],
    refused: tuple[Problem, ...],
    experiment: int | None,
) -> RunFormContext:
    sections: tuple[FormSection, ...] = ()
    others: tuple[FormSection, ...] = ()
    short, derived = SHORT_FORMS.get(recipe), dict[str, str]()
    shown: dict[str, Any] = {}
    findings: tuple[LintFinding, ...] = ()
    chosen: ChosenView | None = None
    plan: PlanView | None = None
    base = _base(recipe, parent)
    if base is not None:
        shown, kept = rebase(base, posted)
        collects = short is not None and short.derives
        if parent is None and (collects or "dataset" in shown):
            kept, derived = derive(shown, kept, from_collection if collects else from_dataset)
        offers = run_offers(parse_run_config(shown), entered=kept)
        sections = form_sections(
            shown, posted=kept, problems=refused, offers=offers, original=base, derived=derived
        )
        findings = () if refused else tuple(check(base, sections))
        overrides = parse_overrides(sections)
        chosen, plan = build_chosen(shown, overrides), build_plan(shown, overrides, posted)
    preset, policy = shown.get("algorithm", {}).get("preset", ""), policy_type(shown)
    differences = count_differences(
        (field.origin for section in sections for field in section.fields),
        base=f"run {parent.pk}" if parent else f"recipe {recipe}",
        preset=preset,
        policy=policy,
    )
    if short is not None:
        sections, others = arrange(sections, short)
    last = f"clone of run {parent.pk}" if parent else "new"
    return RunFormContext(
        section="runs",
        crumbs=(Crumb("Runs", reverse("run-list")), Crumb(last)),
        recipes=recipe_choices(recipe),
        recipe=recipe,
        clone_of=parent.pk if parent else None,
        sections=sections,
        others=others,
        short=short.title if short is not None else "",
        preset=preset,
        policy=policy,
        derived=json.dumps(derived),
        findings=findings,
        chosen=chosen,
        plan=plan,
        refused=refused,
        differences=differences,
        experiments=tuple(run_reads.experiment_choices()),
        experiment=experiment,
    )
