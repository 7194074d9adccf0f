"""Creation of collections: rollout runs of one model on one dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from django.contrib.auth.models import User

from engine.config.recipes import resolve
from engine.config.recipes.quickstart import DATASET as QUICKSTART
from engine.types import RunKind, RunState
from webapp.datasets.selectors.defaults import is_local
from webapp.datasets.selectors.difficulty import SCRIPTED
from webapp.experiments.models import Experiment
from webapp.runs.models.runs import Run
from webapp.runs.services import runs

RECIPE = "collect"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionRequest:
    """Choices for a collection; None leaves a setting to the recipe."""

    dataset: str
    model: str
    """Checkpoint, as in ``policy.checkpoint``; ``oracle`` or ``noop``; with an endpoint the model there."""
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
    """Treatment of results that earlier collections of the same policy on the dataset have."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further overrides by dotted name."""


def create(
    request: CollectionRequest, *, actor: User | None = None, experiment: Experiment | None = None
) -> Run:
    """Create a draft. Raises ConfigError as ``runs.create``."""
    overrides = _overrides(request)
    if request.skip != "none":
        config = resolve(request.recipe, overrides).model_dump(mode="json")
        if earlier := earlier_runs(config):
            overrides |= {"collection.skip": request.skip, "collection.skip_runs": earlier}
    return runs.create(recipe=request.recipe, overrides=overrides, actor=actor, experiment=experiment)


def recipe_for(dataset: str) -> str:
    """Return the recipe that a dataset's collections begin with: the quickstart's is for its small policy."""
    return "quickstart-collect" if dataset == QUICKSTART else RECIPE


def earlier_runs(config: Mapping[str, Any]) -> list[str]:
    """Return the collections of a configuration's policy on its dataset, oldest first."""
    found = Run.objects.filter(
        kind=RunKind.ROLLOUT.value,
        config__dataset__name=config["dataset"]["name"],
        config__policy=config["policy"],
    ).exclude(state__in=[RunState.DRAFT.value, RunState.QUEUED.value])
    return [str(pk) for pk in found.exclude(last_seq=0).order_by("pk").values_list("pk", flat=True)]


def derived_settings(*, dataset: str, model: str, by_endpoint: bool) -> dict[str, Any]:
    """Return the overrides that follow from dataset and model: name, tool calls and sandboxes."""
    return {
        "name": f"{model} on {dataset}"[:200],
        **({"agent.tool_format": "native"} if by_endpoint else {}),
        **({"sandbox.backend": "local"} if is_local(dataset) else {}),
    }


def _overrides(request: CollectionRequest) -> dict[str, Any]:
    derived = derived_settings(
        dataset=request.dataset, model=request.model, by_endpoint=bool(request.endpoint)
    )
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
    return derived | set_by_person | _policy(request) | dict(request.settings)


def _policy(request: CollectionRequest) -> dict[str, Any]:
    if request.endpoint:
        policy = {"type": "endpoint", "endpoint": request.endpoint, "model": request.model}
    elif request.model in SCRIPTED:
        policy = {"type": request.model}
    else:
        policy = {"type": "transformer", "checkpoint": request.model}
    sampling = {} if request.temperature is None else {"temperature": request.temperature}
    return {f"policy.{name}": value for name, value in (policy | sampling).items()}
