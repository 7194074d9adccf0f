"""New-run form: recipe, settings, experiment; or a clone of another run with changes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from django.contrib import messages
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from engine.config.run import POLICY_TYPE_KEY, PRESET_KEY
from engine.errors import ConfigError, Problem
from engine.reading import parse_json
from webapp.accounts.gate import operator
from webapp.core.contexts.frame import Crumb
from webapp.core.contexts.numbers import MOST_ID, whole
from webapp.core.pages import page, params_of, posted_of
from webapp.core.permissions import Person, check_author
from webapp.experiments.models import Experiment
from webapp.runs.contexts.forms.chosen import build_chosen
from webapp.runs.contexts.forms.differences import Difference, count_differences
from webapp.runs.contexts.forms.form import FormSection, edited, form_sections, preselected
from webapp.runs.contexts.forms.new_run import RunFormContext, recipe_groups
from webapp.runs.contexts.forms.offers import run_offers
from webapp.runs.contexts.forms.plan import build_plan
from webapp.runs.contexts.forms.short_forms import SHORT_FORMS, arrange
from webapp.runs.contexts.tries import TriesView, tries_before_launch
from webapp.runs.models.runs import Run
from webapp.runs.selectors import runs as run_reads
from webapp.runs.selectors.recipes import saved_recipe
from webapp.runs.services import drafts, tries
from webapp.runs.services import recipes as recipe_writes
from webapp.runs.services import runs as run_writes
from webapp.runs.services.drafts import Draft
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
    experiment_id = whole(data.get("experiment", ""), most=MOST_ID)
    draft = _draft(recipe, parent, data)
    if request.method == "POST":
        return _create(request, person, recipe, parent, draft, data, experiment_id)
    context = _context(
        person, recipe, parent, draft, data, (), parent.experiment_id if parent else experiment_id
    )
    return page(request, person, "runs/form/new.html", context)


def _draft(recipe: str, parent: Run | None, data: Mapping[str, str]) -> Draft | None:
    """Return the draft of a form's settings; None without a recipe."""
    if parent is None and not recipe:
        return None
    try:
        before = drafts.draft(recipe=recipe, parent=parent, **_before(data))
        overrides = edited(before, data)
        draft = drafts.draft(recipe=recipe, parent=parent, overrides=overrides)
        if not draft.missing:
            return draft
        overrides |= preselected(draft, run_offers(draft))
        return drafts.draft(recipe=recipe, parent=parent, overrides=overrides)
    except ConfigError as unusable:
        raise Http404(str(unusable)) from unusable


def _before(data: Mapping[str, str]) -> dict[str, Any]:
    """Return the overrides of the rendered form and what followed; without a form what selects settings."""
    if "rendered" not in data:
        return {"overrides": {key: data[key] for key in drafts.SELECTING if key in data}}
    try:
        rendered = parse_json(data["rendered"])
        drafts.check_storable(rendered)
    except (ValueError, ConfigError):
        return {}
    if not isinstance(rendered, dict):
        return {}
    parts = {name: rendered.get(name) for name in ("overrides", "follows")}
    return {name: part for name, part in parts.items() if isinstance(part, dict)}


def _create(
    request: HttpRequest,
    person: Person,
    recipe: str,
    parent: Run | None,
    draft: Draft | None,
    posted: Mapping[str, str],
    experiment_id: int | None,
) -> HttpResponse:
    experiment = Experiment.objects.filter(pk=experiment_id).first() if experiment_id is not None else None
    shown = partial(
        _context, person, recipe, parent, draft, posted, experiment=experiment.pk if experiment else None
    )
    if posted.get("then") == "check":
        return page(request, person, "runs/form/new.html", shown(()))
    if posted.get("then") == "try" and draft is not None:
        return page(request, person, "runs/form/new.html", shown(_try(person, draft)))
    overrides = draft.overrides if draft is not None else {}
    try:
        run = _make(person, recipe, parent, overrides, experiment, start=posted.get("then") == "start")
    except (ConfigError, IllegalTransitionError) as error:
        problems = error.problems if isinstance(error, ConfigError) else (Problem(str(error)),)
        return page(request, person, "runs/form/new.html", shown(problems), status=422)
    return redirect("run-detail", run.pk)


def _try(person: Person, draft: Draft) -> tuple[Problem, ...]:
    """Try the draft's model as the run would use it; return the reasons why it is not tried."""
    try:
        tries.start(overrides=tries.overrides_of(draft.resolved()), actor=person.user)
    except ConfigError as error:
        return tuple(error.problems)
    return ()


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


def _context(
    person: Person,
    recipe: str,
    parent: Run | None,
    draft: Draft | None,
    posted: Mapping[str, str],
    refused: tuple[Problem, ...],
    experiment: int | None,
) -> RunFormContext:
    sections: tuple[FormSection, ...] = ()
    others: tuple[FormSection, ...] = ()
    differences: tuple[Difference, ...] = ()
    short = SHORT_FORMS.get(recipe)
    if draft is not None:
        sections = form_sections(draft, problems=refused, offers=run_offers(draft))
        differences = count_differences(
            (field.origin for section in sections for field in section.fields),
            base=f"run {parent.pk}" if parent else f"recipe {recipe}",
            preset=draft.text(PRESET_KEY),
            policy=draft.text(POLICY_TYPE_KEY),
        )
        if short is not None:
            sections, others = arrange(sections, short)
    last = f"clone of run {parent.pk}" if parent else "new"
    return RunFormContext(
        section="runs",
        crumbs=(Crumb("Runs", reverse("run-list")), Crumb(last)),
        recipes=recipe_groups(recipe, role=person.role, user_id=person.user.pk),
        recipe=recipe,
        clone_of=parent.pk if parent else None,
        sections=sections,
        others=others,
        short=short.title if short is not None else "",
        rendered=json.dumps({"overrides": draft.overrides, "follows": draft.follows}) if draft else "",
        findings=tuple(draft.findings()) if draft is not None and not refused else (),
        chosen=build_chosen(draft) if draft is not None else None,
        tries=_tries_of(draft) if draft is not None else None,
        plan=build_plan(draft, posted) if draft is not None else None,
        refused=refused,
        differences=differences,
        experiments=tuple(run_reads.experiment_choices()),
        experiment=experiment,
    )


def _tries_of(draft: Draft) -> TriesView | None:
    """Return the tries of a draft's model; None where its policy is no model that can be tried."""
    return tries_before_launch(
        draft.text(POLICY_TYPE_KEY), draft.text("policy.checkpoint"), draft.text("agent.prompt")
    )


@operator
@require_POST
def recipe_save(request: HttpRequest, person: Person, run_id: int) -> HttpResponse:
    """Save the settings of a run that differ from its recipe as a new recipe."""
    form = posted_of(request)
    name, description = form.get("name", ""), form.get("description", "")
    try:
        saved = recipe_writes.save_recipe(
            run=run_or_404(run_id), name=name, description=description, actor=person.user
        )
    except ConfigError as error:
        messages.error(request, f"The recipe was not saved: {error}")
    else:
        messages.success(request, f"The recipe {saved.name} was saved; the form of a new run lists it.")
    return redirect(f"{reverse('run-detail', args=[run_id])}?tab=configuration")


@operator
@require_POST
def recipe_remove(request: HttpRequest, person: Person, name: str) -> HttpResponse:
    """Remove a saved recipe."""
    recipe = saved_recipe(name)
    if recipe is None:
        raise Http404(f"There is no saved recipe {name}.")
    check_author(recipe.created_by_id, person.role, person.user.pk)
    recipe_writes.remove_recipe(recipe=recipe, actor=person.user)
    messages.success(request, f"The recipe {name} was removed.")
    return redirect("run-new")
