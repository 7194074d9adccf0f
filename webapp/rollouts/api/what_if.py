"""Stored groups and updates under other settings of the objective, in the API."""

from __future__ import annotations

import dataclasses
from typing import Any

from django.http import HttpRequest
from ninja import Router, Schema
from ninja.errors import HttpError

from webapp.api.auth import role_of_caller, viewer
from webapp.core.permissions import check_rollouts
from webapp.rollouts.contexts.run_what_if import Totals, UpdatesWhatIf, updates_what_if
from webapp.rollouts.contexts.what_if import counterfactual
from webapp.runs.api.runs import find as find_run
from webapp.runs.models.runs import Run

router = Router(tags=["trajectories"], auth=viewer)


class WhatIfIn(Schema):
    """Overrides of the run's ``algorithm`` settings, by name."""

    settings: dict[str, Any]


class MemberOut(Schema):
    """Advantage and mask of one trajectory of a group."""

    index: int
    advantage: float | None
    baseline: float | None
    loss_mask: bool
    mask_reason: str


class WhatIfOut(Schema):
    """Advantages and masks of a group under other settings."""

    algorithm: dict[str, Any]
    members: list[MemberOut]
    notes: list[str]


class SignalOut(Schema):
    """Totals of updates under one objective."""

    groups: int
    uniform: int
    """Groups without signal."""
    trajectories: int
    tokens: int
    tasks: dict[str, float]
    """Task → share of the gradient where no ratio is clipped, the updates counting equally."""


class RunWhatIfOut(Schema):
    """A run's updates under its own objective and another one."""

    updates: int
    algorithm: dict[str, Any]
    own: SignalOut
    other: SignalOut


@router.post("/runs/{int:run_id}/what-if", response=RunWhatIfOut)
def run_what_if(
    request: HttpRequest, run_id: int, body: WhatIfIn, iteration: int | None = None
) -> dict[str, Any]:
    """Return what a run's updates, or that of one iteration, would have trained on under other settings."""
    result = updates_what_if(_readable(request, run_id), body.settings, iteration=iteration)
    if iteration is not None and not result.updates:
        raise HttpError(404, f"run {run_id} has no finished group of an update in iteration {iteration}")
    return what_if_document(result)


def what_if_document(result: UpdatesWhatIf) -> dict[str, Any]:
    """Return the fields of ``RunWhatIfOut``."""

    def signal(totals: Totals) -> dict[str, Any]:
        names = ("groups", "uniform", "trajectories", "tokens")
        return {name: getattr(totals, name) for name in names} | {"tasks": totals.shares()}

    return {
        "updates": result.updates,
        "algorithm": result.algorithm.model_dump(mode="json"),
        "own": signal(result.own),
        "other": signal(result.other),
    }


@router.post("/runs/{int:run_id}/groups/{phase}/{int:iteration}/{task_key}/what-if", response=WhatIfOut)
def group_what_if(
    request: HttpRequest, run_id: int, phase: str, iteration: int, task_key: str, body: WhatIfIn
) -> WhatIfOut:
    """Return the advantages and masks that a stored group would have under other settings."""
    result = counterfactual(
        _readable(request, run_id),
        phase=phase,
        iteration=iteration,
        task_key=task_key,
        settings=body.settings,
    )
    if result is None:
        raise HttpError(404, f"run {run_id} has no group of task {task_key} in {phase} {iteration}")
    members = [MemberOut(**dataclasses.asdict(member)) for member in result.members]
    return WhatIfOut(
        algorithm=result.config.model_dump(mode="json"), members=members, notes=list(result.notes)
    )


def _readable(request: HttpRequest, run_id: int) -> Run:
    """Return the run. Raises PermissionDenied if the caller may not read its rollouts."""
    run = find_run(run_id)
    check_rollouts(run, role_of_caller(request))
    return run
