"""Reads of a trajectory's steps: an outline of all, some in full, and those that contain a text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from django.db.models import Q, QuerySet, TextField
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast, Coalesce, Left

from webapp.rollouts.models.trajectories import Step

_TITLE_CHARS = 200
_COLUMNS = (
    "index", "action", "action_hash", "tool", "thinking_tokens", "model_seconds", "tool_seconds", "exit_code",
    "error_text",
)  # fmt: skip
_SEARCHED = ("thought", "response", "observation", "error")
"""Columns that are searched, besides the arguments."""


@dataclass(frozen=True, slots=True)
class OutlineRow:
    """A step without its long texts."""

    index: int
    action: str
    action_hash: str
    tool: str
    thinking_tokens: int | None
    model_seconds: float
    tool_seconds: float
    exit_code: int | None
    error: str
    """Beginning of the error message."""
    command: str
    path: str
    term: str
    """Beginnings of arguments: the command or code, the path, the search term."""


def _argument(*names: str) -> Any:
    values = [Left(KeyTextTransform(name, "arguments"), _TITLE_CHARS) for name in names]
    return Coalesce(*values) if len(values) > 1 else values[0]


def outline(trajectory_id: int) -> list[OutlineRow]:
    """Return all steps of a trajectory without their long texts, in one query."""
    rows = (
        Step.objects.filter(trajectory_id=trajectory_id)
        .order_by("index")
        .annotate(
            error_text=Left("error", _TITLE_CHARS),
            command=_argument("command", "code"),
            path=_argument("path", "file_path"),
            term=_argument("search_term", "pattern", "query"),
        )
        .values_list(*_COLUMNS, "command", "path", "term")
    )
    return [OutlineRow(*row[:-3], *(text or "" for text in row[-3:])) for row in rows]


def steps(trajectory_id: int, *, start: int = 0, limit: int | None = None) -> list[Step]:
    """Return steps as pages show them from index ``start`` on, at most ``limit``."""
    rows = Step.objects.filter(trajectory_id=trajectory_id, index__gte=start)
    return list(rows.defer("provider_state").order_by("index")[:limit])


def whole_steps(trajectory_id: int) -> list[Step]:
    """Return all steps with all recorded fields."""
    return list(Step.objects.filter(trajectory_id=trajectory_id).order_by("index"))


def get_step(trajectory_id: int, index: int) -> Step | None:
    """Return one step."""
    return Step.objects.filter(trajectory_id=trajectory_id, index=index).first()


def containing(trajectory_id: int, text: str) -> QuerySet[Step]:
    """Return the steps whose texts or arguments contain a text, ignoring case."""
    # The arguments are searched as JSON, in which quotes and line breaks are escaped.
    condition = Q(argument_text__icontains=json.dumps(text, ensure_ascii=False)[1:-1])
    for name in _SEARCHED:
        condition |= Q(**{f"{name}__icontains": text})
    return (
        Step.objects.annotate(argument_text=Cast("arguments", TextField()))
        .filter(condition, trajectory_id=trajectory_id)
        .only("trajectory_id", "index", "tool", "arguments", *_SEARCHED)
        .order_by("index")
    )
