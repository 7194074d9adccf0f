"""Steps of a run, and one task of it, over iterations: number, length and thinking."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja import Router, Schema
from ninja.errors import HttpError

from webapp.api.auth import role_of_caller, viewer
from webapp.core.permissions import check_rollouts
from webapp.rollouts.selectors import scans as scan_reads
from webapp.rollouts.selectors.task_history import task_history
from webapp.runs.api.runs import find
from webapp.runs.models.runs import Run
from webapp.runs.selectors.step_map import step_map

router = Router(tags=["runs"])


class StepsCell(Schema):
    """Steps of consecutive training iterations at consecutive indices of a rollout."""

    iterations: tuple[int, int]
    """First and last one."""
    indices: tuple[int, int]
    rollouts: int
    """Rollouts with a first step; 0 unless the indices begin at 0."""
    steps: int
    generated_tokens: float
    """Mean of a step."""
    thinking_tokens: float | None
    """Mean of a step; null where they are not known."""


class PurposeOut(Schema):
    """Steps of one purpose in an iteration or evaluation."""

    phase: str
    iteration: int
    purpose: str
    """``locate``, ``edit``, ``test``, ``run``, ``submit`` or ``other``."""
    steps: int
    """Steps with a known number of thinking tokens."""
    thinking_tokens: int
    """Tokens of all of them."""


class TaskPointOut(Schema):
    """A task in one iteration or evaluation; null where nothing is known."""

    phase: str
    iteration: int
    solved: int
    graded: int
    steps: float | None
    """Mean of the finished rollouts."""
    generated: float | None
    """Generated tokens per step."""
    thinking: float | None
    """Thinking tokens per step."""


class RunSteps(Schema):
    """Steps of a run."""

    cells: list[StepsCell]
    """At most 64 ranges of iterations and of indices, from the stored profiles of finished iterations."""
    purposes: list[PurposeOut] | None
    """Of the newest 20,000 scanned rollouts; null for environments without a repository."""


def steps_record(run: Run) -> dict[str, Any]:
    """Return the fields of ``RunSteps``."""
    found = step_map(run.pk)
    purposes = None
    if scan_reads.has_repository(run):
        purposes = [
            {"phase": phase, "iteration": iteration, "purpose": name, "steps": thinking.steps,
             "thinking_tokens": thinking.tokens}
            for (phase, iteration), sums in scan_reads.thinking_over_time(run.pk).items()
            for name, thinking in sums.items()
            if thinking.steps
        ]  # fmt: skip
    cells = [
        {
            "iterations": found.iterations.range_of(cell.bucket),
            "indices": found.rows.range_of(cell.row),
            "rollouts": cell.rollouts,
            "steps": cell.steps,
            "generated_tokens": round(cell.generated / cell.steps, 2),
            "thinking_tokens": None if cell.thinking is None else round(cell.thinking, 2),
        }
        for cell in found.cells
    ] if found else []  # fmt: skip
    return {"cells": cells, "purposes": purposes}


@router.get("/runs/{int:run_id}/steps", auth=viewer, response=RunSteps)
def get_steps(request: HttpRequest, run_id: int) -> dict[str, Any]:
    """Return number, length and thinking of a run's steps by iteration, index and purpose."""
    run = find(run_id)
    check_rollouts(run, role_of_caller(request))
    return steps_record(run)


def task_records(run: Run, task_key: str) -> list[dict[str, Any]]:
    """Return the newest 2,000 groups of a task, oldest first, as ``TaskPointOut``."""
    names = TaskPointOut.model_fields
    return [{name: getattr(point, name) for name in names} for point in task_history(run.pk, task_key)]


@router.get("/runs/{int:run_id}/tasks/{task_key}", auth=viewer, response=list[TaskPointOut])
def get_task_history(request: HttpRequest, run_id: int, task_key: str) -> list[dict[str, Any]]:
    """Return solve rate, steps and thinking of one task over a run's iterations and evaluations."""
    run = find(run_id)
    check_rollouts(run, role_of_caller(request))
    records = task_records(run, task_key)
    if not records:
        raise HttpError(404, f"run {run_id} has no group of task '{task_key[:80]}'")
    return records
