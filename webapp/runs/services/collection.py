"""Creation of collections: rollout runs of one model on one dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from django.contrib.auth.models import User

from engine.config.recipes.quickstart import DATASET as QUICKSTART
from engine.errors import ConfigError
from engine.types import RunKind
from webapp.datasets.selectors.difficulty import SCRIPTED
from webapp.experiments.models import Experiment
from webapp.runs.models.runs import Run
from webapp.runs.services import runs
from webapp.runs.services.drafts import draft
from webapp.runs.services.recipes import resolve_recipe

RECIPE = "collect"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionRequest:
    """Choices for a collection; None leaves a setting to the recipe."""

    dataset: str
    model: str
    """Checkpoint as in ``policy.checkpoint``, ``oracle`` or ``noop``; with an endpoint, the model there."""
    endpoint: str = ""
    recipe: str = RECIPE
    split: str | None = None
    samples: int | None = None
    """Rollouts per task."""
    concurrency: int | None = None
    temperature: float | None = None
    start_index: int | None = None
    limit: int | None = None
    """Maximum number of tasks, from ``start_index`` on."""
    shuffle: bool = False
    skip: Literal["none", "finished", "solved"] = "none"
    """Results of earlier collections (same policy and dataset) that are not collected again."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further overrides by dotted name."""


def create(
    request: CollectionRequest, *, actor: User | None = None, experiment: Experiment | None = None
) -> Run:
    """Create a draft. Raises ConfigError as ``runs.create``, also for recipes of other kinds."""
    overrides = _overrides(request)
    kind = RunKind(resolve_recipe(request.recipe).kind)
    if kind is not RunKind.ROLLOUT:
        raise ConfigError(f"recipe {request.recipe} is of kind {kind}: collections need one of kind rollout")
    skipping = {**overrides, "collection.skip": request.skip}
    # Without earlier runs to skip, the configuration refuses any value but "none".
    if draft(recipe=request.recipe, overrides=skipping).follows.get("collection.skip_runs"):
        overrides = skipping
    return runs.create(recipe=request.recipe, overrides=overrides, actor=actor, experiment=experiment)


def recipe_for(dataset: str) -> str:
    """Return the default recipe of a dataset's collections; the quickstart has one for its small policy."""
    return "quickstart-collect" if dataset == QUICKSTART else RECIPE


def _overrides(request: CollectionRequest) -> dict[str, Any]:
    chosen = {
        "dataset.name": request.dataset,
        "dataset.split": request.split,
        "dataset.limit": request.limit,
        "rollout.group_size": request.samples,
        "rollout.max_concurrent": request.concurrency,
        "collection.start_index": request.start_index,
        "collection.shuffle": request.shuffle or None,
    }
    set_by_person = {name: value for name, value in chosen.items() if value is not None}
    return set_by_person | _policy(request) | dict(request.settings)


def _policy(request: CollectionRequest) -> dict[str, Any]:
    if request.endpoint:
        policy = {"type": "endpoint", "endpoint": request.endpoint, "model": request.model}
    elif request.model in SCRIPTED:
        policy = {"type": request.model}
    else:
        policy = {"type": "transformer", "checkpoint": request.model}
    sampling = {} if request.temperature is None else {"temperature": request.temperature}
    return {f"policy.{name}": value for name, value in (policy | sampling).items()}
