"""Steps of a run over its iterations: their number, length, and thinking by index and by purpose."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja import Router, Schema

from webapp.api.auth import role_of_caller, viewer
from webapp.core.permissions import check_rollouts
from webapp.rollouts.selectors import scans as scan_reads
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
