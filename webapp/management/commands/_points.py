"""Helpers of the commands about one evaluation of a run, or the rollouts of one of its iterations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandError, CommandParser

from webapp.management.commands._runs import find_run
from webapp.rollouts.selectors.attempts import Point, newest_point


def add_point(parser: CommandParser) -> None:
    """Add the arguments that select an evaluation or iteration."""
    parser.add_argument("run_id", type=int)
    parser.add_argument("--phase", default="", help="train or eval:NAME (default: the newest evaluation)")
    parser.add_argument("--iteration", type=int, help="iteration (default: the newest)")


def find_point(options: Mapping[str, Any], *, index: int | None = None) -> Point:
    """Return what the arguments select. Raises CommandError where no such rollout has finished."""
    run = find_run(options["run_id"])
    found = newest_point(run, phase=options["phase"], iteration=options["iteration"], index=index)
    if found is None:
        raise CommandError(f"run {run.pk} has no such finished rollouts")
    return found


def described(point: Point) -> dict[str, Any]:
    """Return the selection as fields of a command's output."""
    return {"run": point.run.pk, "phase": point.phase, "iteration": point.iteration}
