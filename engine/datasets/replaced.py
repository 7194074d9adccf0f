"""Rows of earlier versions of a dataset: ``replaced.jsonl`` in its folder names the rows that are gone.

    {"id": …, "instance_id": …, "tree": hash of the files that agents start with}

A changed row gets another id and keeps its instance id. The record tells which current row continues the row
of an old trajectory, and whether the old patch still fits its tree.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.types import TaskRow

FILE = "replaced.jsonl"
_MALFORMED = (ValueError, TypeError, KeyError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowIdentity:
    """Identity of a row over the versions of its dataset."""

    id: str
    instance_id: str
    tree: str
    """Hash of image, workdir, commit and setup patch: equal for rows whose agents start with equal files."""

    def __post_init__(self) -> None:
        if not all(type(text) is str for text in (self.id, self.instance_id, self.tree)):
            raise TypeError("the identity of a row consists of texts")

    @property
    def start(self) -> tuple[str, str]:
        """Return what rows share whose patches fit each other: instance id and tree."""
        return self.instance_id, self.tree

    @classmethod
    def of(cls, row: TaskRow) -> RowIdentity:
        """Return the identity of a row."""
        return _identity(asdict(row.task), row.answer.setup_patch)


def _identity(task: Mapping[str, Any], setup_patch: str) -> RowIdentity:
    tree = [task["image"], task["workdir"], task["base_commit"], setup_patch]
    digest = hashlib.sha256(json.dumps(tree).encode()).hexdigest()[:16]
    return RowIdentity(id=task["id"], instance_id=task["instance_id"], tree=digest)


def record(folder: Path, successor: Path) -> None:
    """Write the rows of a dataset folder, and of its earlier versions, that its successor lacks.

    Malformed rows are left out: they must not keep a dataset from being replaced.
    """
    rows = {**read(folder), **{row.id: row for row in _rows(folder)}}
    for row in _rows(successor):
        rows.pop(row.id, None)
    if rows:
        with (successor / FILE).open("w") as file:
            file.writelines(json.dumps(asdict(row)) + "\n" for row in rows.values())


def read(folder: Path) -> dict[str, RowIdentity]:
    """Return the replaced rows of a dataset folder by id; malformed lines are left out."""
    rows = {}
    for line in _lines(folder / FILE):
        with suppress(*_MALFORMED):
            row = RowIdentity(**json.loads(line))
            rows[row.id] = row
    return rows


def _rows(folder: Path) -> Iterator[RowIdentity]:
    for task, answer in zip(_lines(folder / "tasks.jsonl"), _lines(folder / "answers.jsonl"), strict=False):
        with suppress(*_MALFORMED):
            fields = {"workdir": "/testbed", **json.loads(task)}
            yield _identity(fields, json.loads(answer).get("setup_patch", ""))


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file that are not blank; none if it cannot be read."""
    with suppress(OSError), path.open(errors="replace") as file:
        yield from filter(str.strip, file)
