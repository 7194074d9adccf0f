"""Files of rollouts to score, and of tests that agents wrote; bad lines are rejected alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from engine.datasets.importers.fields import Row, find
from engine.datasets.importers.files import open_rows
from engine.errors import DatasetError
from engine.types import Verdict
from engine.verifiers.execution_based.reproduction import ReproductionTest
from engine.verifiers.execution_based.scores import CandidatePatch
from engine.verifiers.execution_based.testing_agent import reproduction_test

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRollout:
    """A rollout to score."""

    task: str
    """Id or instance id of its task."""
    candidate: CandidatePatch
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Other columns for selection: ``resolved``, ``p_yes``, ``steps``, ``tokens``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenTest:
    """A reproduction test to examine."""

    task: str
    test: ReproductionTest


def read_rollouts(path: Path) -> tuple[list[FinishedRollout], list[str]]:
    """Return the rollouts of a JSONL, JSON or parquet file, and the reasons why lines were rejected.

    A row has ``task_id`` or ``instance_id``, ``trajectory_id`` or ``id``, and ``patch``; stored trajectories
    (``trajectories.jsonl`` of a run folder) are such rows.

    Raises:
        DatasetError: the file holds no rollout.
    """
    return _read(path, _rollout)


def read_tests(path: Path) -> tuple[list[WrittenTest], list[str]]:
    """Return the tests of a file, and the reasons why lines were rejected.

    Rows are as in ``read_rollouts``; they may have ``content`` instead of a testing agent's ``patch``.

    Raises:
        DatasetError: the file holds no test.
    """
    return _read(path, _test)


def _read(path: Path, parse: Callable[[Row], T]) -> tuple[list[T], list[str]]:
    parsed: list[T] = []
    rejected: list[str] = []
    for number, file_row in enumerate(open_rows(path, 0)[0], 1):
        try:
            if file_row.error:
                raise DatasetError(file_row.error)
            parsed.append(parse(file_row.row))
        except DatasetError as error:
            name = f", field '{error.field}'" if error.field else ""
            rejected.append(f"line {file_row.line or number}{name}: {error}")
    if not parsed:
        first = f"; the first of {len(rejected)} problems: {rejected[0]}" if rejected else ""
        raise DatasetError(f"{path} holds no usable rows{first}")
    return parsed, rejected


def _rollout(row: Row) -> FinishedRollout:
    columns: dict[str, Any] = {}
    if isinstance(row.get("resolved"), bool):
        columns["resolved"] = row["resolved"]
    elif row.get("verdict") is not None:
        columns["resolved"] = row["verdict"] == Verdict.PASSED
    steps = row.get("steps")
    columns["steps"] = len(steps) if isinstance(steps, list) else steps
    columns |= {name: row.get(name) for name in ("p_yes", "tokens")}
    given = {name: value for name, value in columns.items() if isinstance(value, int | float)}
    candidate = CandidatePatch(trajectory_id=_name(row, "trajectory_id", "id"), patch=_patch(row, "patch"))
    return FinishedRollout(task=_name(row, "task_id", "instance_id"), candidate=candidate, columns=given)


def _test(row: Row) -> WrittenTest:
    task, author = _name(row, "task_id", "instance_id"), _name(row, "trajectory_id", "id")
    if row.get("content") is not None:
        test = ReproductionTest(author=author, content=_patch(row, "content"))
    else:
        test = reproduction_test(_patch(row, "patch"), author=author)
    return WrittenTest(task=task, test=test)


def _name(row: Row, *fields: str) -> str:
    name, value = find(row, *fields)
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise DatasetError(f"is {value!r}; expected a name", field=name)
    return str(value)


def _patch(row: Row, name: str) -> str:
    """Return a text that may be empty."""
    value = row.get(name)
    if not isinstance(value, str):
        raise DatasetError(f"is {type(value).__name__}; expected text, empty for none", field=name)
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise DatasetError(f"holds a lone surrogate: {error.reason}", field=name) from None
    return value
