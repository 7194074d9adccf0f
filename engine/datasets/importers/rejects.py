"""Records of rejected rows, and the check that a converted row can be stored as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.datasets.importers.reading import Item
from engine.errors import DatasetError

FIRST_REJECTS = 5
"""Number of rejected rows that are reported with the counts."""
_MAX_REASON, _SHOWN_REASON, _MAX_NAME = 500, 200, 300


def reject_record(item: Item, where: str, reason: str) -> dict[str, Any]:
    """Return the record of a rejected row: row, file, field, reason, and line and instance id where known."""
    record: dict[str, Any] = {
        "row": item.number,
        "file": _printable(item.file),
        "field": _printable(where),
        "reason": _printable(reason[:_MAX_REASON]),
    }
    if item.line:
        record["line"] = item.line
    name = item.row.get("instance_id")
    if isinstance(name, str):
        record["instance_id"] = _printable(name[:_MAX_NAME])
    return record


def describe_rejects(rejects: Sequence[Mapping[str, Any]]) -> str:
    """Describe rejected rows in one line; empty without any."""
    return "; ".join(map(_described, rejects))


def _described(record: Mapping[str, Any]) -> str:
    place = [f"row {record['row']} of {record['file']}"]
    place += [f"line {record['line']}"] if "line" in record else []
    place += [f"field '{record['field']}'"] if record["field"] else []
    return f"{', '.join(place)}: {record['reason'][:_SHOWN_REASON]}"


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def check_text(value: Any, where: str = "") -> None:
    """Raise DatasetError with the field that contains a lone surrogate or a byte that is not UTF-8."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            character = ascii(value[error.start])
            raise DatasetError(
                f"holds {character} at position {error.start}, which UTF-8 cannot store",
                field=where,
            ) from None
    elif isinstance(value, Mapping):
        for key, item in value.items():
            check_text(key, where)
            check_text(item, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            check_text(item, f"{where}.{number}")
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            check_text(getattr(value, name), name)
