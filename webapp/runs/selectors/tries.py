"""Reads of tries: runs of the recipe ``try-model``."""

from __future__ import annotations

from django.db.models import QuerySet

from engine.types import RunKind, RunState
from webapp.runs.models.runs import Run

RECIPE = "try-model"
_MAX_READ = 20


def recent_tries() -> list[Run]:
    """Return the newest tries of any model."""
    return list(_tries()[:_MAX_READ])


def newest_tries(checkpoint: str, prompt: str) -> list[Run]:
    """Return the newest try of a checkpoint with a prompt in each tool format, by format.

    Args:
        checkpoint: as stored configurations name it, folders as absolute paths.
        prompt: name of the prompt.
    """
    rows = _tries().filter(config__policy__checkpoint=checkpoint, config__agent__prompt=prompt)[:_MAX_READ]
    newest: dict[str, Run] = {}
    for run in rows:
        newest.setdefault(run.config["agent"]["tool_format"], run)
    return [newest[name] for name in sorted(newest)]


def _tries() -> QuerySet[Run]:
    """Return the tries that were queued at least once, newest first."""
    runs = Run.objects.filter(recipe=RECIPE, kind=RunKind.ROLLOUT, archived_at=None)
    return runs.exclude(state=RunState.DRAFT).order_by("-pk")
