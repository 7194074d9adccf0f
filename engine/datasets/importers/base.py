"""Interface of importers: functions from one published row to one task, and the description of a format.

To add a format, write a module with ``convert(row) -> Imported`` and add entries to ``registry.FORMATS`` and
``engine.config.importing.FORMATS``. A converter raises ``DatasetError`` with the field; its caller adds the
row number. ``Task`` must not reveal the answer: no gold patches, test patches, test names or hints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.datasets.importers.fields import Row, number
from engine.datasets.paths import is_test_path
from engine.patches.sections import count_changed_lines, keep_files, split_patch
from engine.types import Task, TaskAnswer

_DOCUMENTATION = (".md", ".rst", ".txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A converted row, without an id."""

    task: Task
    answer: TaskAnswer
    split: str = ""
    """Split named by the row itself; empty when it names none."""
    context: bytes = b""
    """Build context of the task's image, if it has to be built; see ``engine.build_contexts``."""
    ungradable: str = ""
    """Reason why patches for the row cannot be graded on this installation; empty when they can."""


Converter = Callable[[Row], Imported]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A published format."""

    name: str
    convert: Converter
    read_folder: Callable[[Path], Row] | None = None
    """Converts a task folder into a row; None if rows come from parquet, JSONL or JSON files."""
    marker: str = ""
    """File that marks a folder as a task."""


def difficulty(gold_patch: str, num_tests: int, num_fail_to_pass: int) -> dict[str, float]:
    """Return the numbers available in every format: size of the fix and of its tests."""
    code = code_patch(gold_patch)
    return {
        "num_tests": num_tests,
        "num_fail_to_pass": num_fail_to_pass,
        "patch_lines": count_changed_lines(code),
        "num_files": len(split_patch(code)),
    }


def code_patch(patch: str) -> str:
    """Return a patch without documentation and tests."""
    return keep_files(patch, lambda path: not path.endswith(_DOCUMENTATION) and not is_test_path(path))[0]


def with_difficulty(imported: Imported, extra: Mapping[str, Any]) -> Imported:
    """Return the converted row with further numbers; values that are not numbers are left out."""
    values = {name: number(extra, name) for name in extra}
    numbers = {name: value for name, value in values.items() if value is not None}
    task = replace(imported.task, difficulty={**imported.task.difficulty, **numbers})
    return replace(imported, task=task)
