"""Readers of the fields of published rows: lists may be lists, JSON strings or Python literals.

Functions take the row and alternative names of the field; the first present one counts, also in lower case.
They raise a ``DatasetError`` with the field; the caller adds the row number.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from engine.errors import DatasetError
from engine.python_syntax import python_literal

Row = Mapping[str, Any]
_MAX_LITERAL = 64 << 20


def find(row: Row, *names: str) -> tuple[str, Any]:
    """Return the first of ``names`` with a value in the row, and the value; else (first name, None)."""
    for name in names:
        for key in (name, name.lower()):
            if row.get(key) is not None:
                return key, row[key]
    return names[0], None


def unwrap_row(row: Row) -> Row:
    """Return the row nested in ``extra_info`` (verl's form, exported by rLLM); other rows unchanged."""
    if "prompt" not in row or "problem_statement" in row:
        return row
    inner = structure(row.get("extra_info"))
    return inner if isinstance(inner, dict) else row


def text(row: Row, *names: str) -> str:
    """Return a required, non-empty text field."""
    name, value = find(row, *names)
    if value is None:
        raise DatasetError("missing", field=name)
    if not isinstance(value, str):
        raise DatasetError(f"not text but {type(value).__name__}", field=name)
    if not value.strip():
        raise DatasetError("empty", field=name)
    return value


def optional_text(row: Row, *names: str) -> str:
    """Return a text field; empty when missing."""
    name, value = find(row, *names)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DatasetError(f"not text but {type(value).__name__}", field=name)
    return value


def number(row: Row, *names: str) -> float | None:
    """Return a finite number; None when missing or not a number."""
    _, value = find(row, *names)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


def structure(value: Any) -> Any:
    """Parse ``value`` if it is a string with a JSON document or a Python literal; None if it is neither.

    Literals are read without evaluating anything.
    """
    if not isinstance(value, str):
        # parquet columns come as lists, but numpy-backed ones bring tolist
        return value.tolist() if hasattr(value, "tolist") else value
    if len(value) > _MAX_LITERAL:
        return None
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        pass
    try:
        return python_literal(value)
    except ValueError:
        return None


def names(row: Row, *fields: str, required: bool = True) -> tuple[str, ...]:
    """Return a list of test names without repetitions.

    Args:
        row: the published row.
        fields: alternative names of the field.
        required: whether a missing field is an error; else it is an empty list.
    """
    field, raw = find(row, *fields)
    if raw is None:
        if required:
            raise DatasetError("missing", field=field)
        return ()
    value = structure(raw)
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise DatasetError("not a list of test names", field=field)
    return tuple(dict.fromkeys(value))


def mapping(row: Row, *fields: str) -> dict[str, Any]:
    """Return a required object field."""
    field, raw = find(row, *fields)
    if raw is None:
        raise DatasetError("missing", field=field)
    value = structure(raw)
    if not isinstance(value, dict):
        raise DatasetError("not an object", field=field)
    return value


def optional_mapping(row: Row, *fields: str) -> dict[str, Any]:
    """Return an object field; empty when missing. Raises DatasetError for another type."""
    return mapping(row, *fields) if find(row, *fields)[1] not in (None, "") else {}


def command_list(value: Any, field: str) -> list[str]:
    """Return a list of commands given as one text or several."""
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise DatasetError("neither a text nor a list of texts", field=field)
    return list(value)


def select_fields(row: Row, *fields: str) -> dict[str, Any]:
    """Return the given fields that have a value, as plain JSON data."""
    values = {}
    for field in fields:
        _, value = find(row, field)
        if value not in (None, "", [], {}):
            values[field] = plain(value)
    return values


def plain(value: Any) -> Any:
    """Return ``value`` as plain JSON data: dates and other foreign objects become text."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(item) for item in value]
    if value is None or isinstance(value, str | int | bool):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    return str(value)
