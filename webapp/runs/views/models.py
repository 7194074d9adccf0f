"""Models page: cards of models and policy folders, and tries of them."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from engine.errors import ConfigError
from webapp.accounts.gate import operator, viewer
from webapp.core.pages import page, posted_of
from webapp.core.permissions import Person
from webapp.runs.contexts.models import build_models
from webapp.runs.services import tries


@viewer
def model_list(request: HttpRequest, person: Person) -> HttpResponse:
    """Render the models and the newest tries."""
    return page(request, person, "runs/models/list.html", build_models())


@operator
@require_POST
def model_try(request: HttpRequest, person: Person) -> HttpResponse:
    """Try a model with the settings of the recipe."""
    name = posted_of(request).get("checkpoint", "")
    try:
        queued = tries.start(overrides={"policy.checkpoint": name}, actor=person.user)
    except ConfigError as error:
        messages.error(request, f"{name or 'No model'} was not tried: {error}")
    else:
        numbers = " and ".join(str(run.pk) for run in queued)
        messages.success(request, f"{name} is being tried in runs {numbers}.")
    return redirect("model-list")
