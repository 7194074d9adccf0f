"""Options that select one evaluation of a run, or the rollouts of one of its iterations."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from webapp.core.cli import CommandError
from webapp.rollouts.selectors.attempts import Point, newest_point
from webapp.runs.cli.describe import find_run

Phase = Annotated[str, typer.Option(help="train or eval:NAME (default: the newest evaluation).")]
Iteration = Annotated[int | None, typer.Option(help="Iteration (default: the newest).")]


def find_point(run_id: int, *, phase: str, iteration: int | None) -> Point:
    """Return the selected rollouts. Raises CommandError where no such rollout has finished."""
    run = find_run(run_id)
    point = newest_point(run, phase=phase, iteration=iteration)
    if point is None:
        raise CommandError(f"run {run.pk} has no such finished rollouts")
    return point


def point_record(point: Point) -> dict[str, Any]:
    """Return the selection as fields of a command's output."""
    return {"run": point.run.pk, "phase": point.phase, "iteration": point.iteration}
