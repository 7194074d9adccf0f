"""Trainyard's own export (``trainyard dataset export``): JSON lines of ``{"task", "answer", "split"}``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from engine.datasets.importers.base import Imported
from engine.datasets.importers.fields import Row, mapping, optional_text
from engine.errors import DatasetError
from engine.types import Task, TaskAnswer

T = TypeVar("T")
_TASK: TypeAdapter[Task] = TypeAdapter(Task)
_ANSWER: TypeAdapter[TaskAnswer] = TypeAdapter(TaskAnswer)


def convert(row: Row) -> Imported:
    """Convert one exported row. Raises DatasetError with the field."""
    published = mapping(row, "task")
    task = _read(_TASK, published, "task")
    # Validation converts whole numbers to floats, and the id is a hash of the numbers as written.
    task = replace(task, difficulty=dict(published.get("difficulty") or {}))
    return Imported(
        task=task,
        answer=_read(_ANSWER, mapping(row, "answer"), "answer"),
        split=optional_text(row, "split"),
    )


def _read(adapter: TypeAdapter[T], data: Mapping[str, Any], where: str) -> T:
    try:
        return adapter.validate_python(dict(data), extra="forbid")
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join([where, *(str(part) for part in first["loc"])])
        raise DatasetError(first["msg"], field=field) from None
