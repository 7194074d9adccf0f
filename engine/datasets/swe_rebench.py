"""Reads rows of SWE-rebench and its relatives (SWE-bench, SWE-Gym): one neutral structure.

Lists come as lists, JSON strings or Python literals; all three are understood. To read another
relative, give its other field names here.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.datasets.patches import count_changed_lines, is_test_path, keep_files, split_patch
from engine.errors import DatasetError
from engine.types import Task, TaskAnswer

_DOCUMENTATION = (".md", ".rst", ".txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweRow:
    """A row with its lists parsed."""

    instance_id: str
    repo: str
    base_commit: str
    problem_statement: str
    patch: str
    test_patch: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    image: str
    metadata: Mapping[str, Any]

    @property
    def code_patch(self) -> str:
        """The gold patch without documentation and tests."""
        return keep_files(
            self.patch, lambda path: not path.endswith(_DOCUMENTATION) and not is_test_path(path)
        )[0]

    def task(self, *, image: str = "", metadata: Mapping[str, Any] | None = None) -> Task:
        """The visible half, without an id yet (``store.with_content_id`` gives it one)."""
        return Task(
            id="",
            instance_id=self.instance_id,
            repo=self.repo,
            base_commit=self.base_commit,
            problem_statement=self.problem_statement,
            image=image or self.image,
            difficulty={
                "num_tests": len(self.fail_to_pass) + len(self.pass_to_pass),
                "num_fail_to_pass": len(self.fail_to_pass),
                "patch_lines": count_changed_lines(self.code_patch),
                "num_files": len(split_patch(self.code_patch)),
            },
            metadata={**self.metadata, **(metadata or {})},
        )

    def answer(self, **fields: Any) -> TaskAnswer:
        """The gold-bearing half; ``fields`` are set on top."""
        values: dict[str, Any] = {
            "gold_patch": self.patch,
            "test_patch": self.test_patch,
            "fail_to_pass": self.fail_to_pass,
            "pass_to_pass": self.pass_to_pass,
        }
        return TaskAnswer(**{**values, **fields})


def read_row(row: Mapping[str, Any], *, number: int) -> SweRow:
    """Validate a row.

    Args:
        row: as published.
        number: row number for error messages, from 0.

    Raises:
        DatasetError: names the row and the field that is missing or malformed.
    """
    texts = {
        name: _text(row, name, number)
        for name in ("instance_id", "repo", "base_commit", "problem_statement", "patch")
    }
    known = ("version", "created_at", "license_name", "environment_setup_commit")
    return SweRow(
        **texts,
        test_patch=str(row.get("test_patch") or ""),
        fail_to_pass=_names(row, "FAIL_TO_PASS", number),
        pass_to_pass=_names(row, "PASS_TO_PASS", number),
        image=str(row.get("docker_image") or row.get("image_name") or row.get("image") or ""),
        metadata={name: row[name] for name in known if row.get(name)},
    )


def _text(row: Mapping[str, Any], name: str, number: int) -> str:
    value = row.get(name)
    if not isinstance(value, str) or (not value and name != "problem_statement"):
        raise DatasetError("missing or not text", row=number, field=name)
    return value


def _names(row: Mapping[str, Any], name: str, number: int) -> tuple[str, ...]:
    value = row.get(name, row.get(name.lower()))
    if isinstance(value, str):
        for parse in (json.loads, ast.literal_eval):
            try:
                value = parse(value)
                break
            except (ValueError, SyntaxError):
                continue
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise DatasetError("not a list of test names", row=number, field=name)
    return tuple(value)
