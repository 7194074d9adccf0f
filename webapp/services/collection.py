"""Creation of collections: rollout runs of one model on one dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from django.contrib.auth.models import User

from engine.config.recipes import resolve
from engine.types import RunKind, RunState
from webapp.models import Dataset, Experiment, Run, Task
from webapp.services import runs

RECIPE = "collect"
_SCRIPTS = ("oracle", "noop")
_LOCAL_IMAGE = "local:"


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
    if request.skip != "none" and (earlier := earlier_runs(request, overrides)):
        overrides |= {"collection.skip": request.skip, "collection.skip_runs": earlier}
    return runs.create(recipe=request.recipe, overrides=overrides, actor=actor, experiment=experiment)


def earlier_runs(request: CollectionRequest, overrides: Mapping[str, Any]) -> list[str]:
    """Return the collections of the same policy on the same dataset, oldest first. Raises ConfigError."""
    policy = resolve(request.recipe, overrides).model_dump(mode="json").get("policy")
    found = Run.objects.filter(
        kind=RunKind.ROLLOUT.value, config__dataset__name=request.dataset, config__policy=policy
    ).exclude(state__in=[RunState.DRAFT.value, RunState.QUEUED.value])
    return [str(pk) for pk in found.exclude(last_seq=0).order_by("pk").values_list("pk", flat=True)]


def _overrides(request: CollectionRequest) -> dict[str, Any]:
    chosen = {
        "name": f"{request.model} on {request.dataset}"[:200],
        "dataset.name": request.dataset,
        "policy": _policy(request),
        "dataset.split": request.split,
        "dataset.limit": request.limit,
        "rollout.group_size": request.samples,
        "rollout.max_concurrent": request.concurrency,
        "collection.start_index": request.start_index,
        "collection.shuffle": request.shuffle or None,
        "agent.tool_format": "native" if request.endpoint else None,
        "sandbox.backend": "local" if _is_local(request.dataset) else None,
    }
    return {name: value for name, value in chosen.items() if value is not None} | dict(request.settings)


def _policy(request: CollectionRequest) -> dict[str, Any]:
    if request.endpoint:
        policy = {"type": "endpoint", "endpoint": request.endpoint, "model": request.model}
    elif request.model in _SCRIPTS:
        return {"type": request.model}
    else:
        policy = {"type": "transformer", "checkpoint": request.model}
    return policy if request.temperature is None else {**policy, "temperature": request.temperature}


def _is_local(name: str) -> bool:
    """Return whether all images of a dataset are folders of this machine."""
    dataset = Dataset.objects.filter(name=name).first()
    tasks = Task.objects.filter(dataset=dataset)
    return (
        dataset is not None and tasks.exists() and not tasks.exclude(image__startswith=_LOCAL_IMAGE).exists()
    )
