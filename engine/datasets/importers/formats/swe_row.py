"""Columns shared by SWE-bench and its descendants, parsed into one neutral structure.

Lists may be lists, JSON strings or Python literals; keys may be in upper or lower case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.datasets.importers.base import code_patch, difficulty
from engine.datasets.importers.fields import Row, names, optional_text, select_fields, text
from engine.errors import DatasetError
from engine.types import Task, TaskAnswer

_IMAGE_FIELDS = ("docker_image", "image_name", "image", "image_url")
_VISIBLE = ("version", "created_at", "license_name", "environment_setup_commit")


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
    """Data that the agent may see: version, dates, licence."""

    @property
    def code_patch(self) -> str:
        """Return the gold patch without documentation and tests."""
        return code_patch(self.patch)

    def task(self, *, image: str = "", metadata: Mapping[str, Any] | None = None, **fields: Any) -> Task:
        """Return the visible half, without an id (assigned by ``store.with_content_id``)."""
        values: dict[str, Any] = {
            "id": "",
            "instance_id": self.instance_id,
            "repo": self.repo,
            "base_commit": self.base_commit,
            "problem_statement": self.problem_statement,
            "image": image or self.image,
            "difficulty": difficulty(
                self.patch, len(self.fail_to_pass) + len(self.pass_to_pass), len(self.fail_to_pass)
            ),
            "metadata": {**self.metadata, **(metadata or {})},
        }
        return Task(**{**values, **fields})

    def answer(self, **fields: Any) -> TaskAnswer:
        """Return the half with the gold patch and tests; ``fields`` override its values."""
        values: dict[str, Any] = {
            "gold_patch": self.patch,
            "test_patch": self.test_patch,
            "fail_to_pass": self.fail_to_pass,
            "pass_to_pass": self.pass_to_pass,
        }
        return TaskAnswer(**{**values, **fields})


def read_row(row: Row, *, number: int | None = None) -> SweRow:
    """Validate a row.

    Args:
        row: as published.
        number: row number for error messages, from 0.

    Raises:
        DatasetError: names the row and the field that is missing or malformed.
    """
    try:
        required = {
            name: text(row, name)
            for name in ("instance_id", "repo", "base_commit", "problem_statement", "patch")
        }
        return SweRow(
            **required,
            test_patch=optional_text(row, "test_patch"),
            fail_to_pass=names(row, "FAIL_TO_PASS"),
            pass_to_pass=names(row, "PASS_TO_PASS"),
            image=optional_text(row, *_IMAGE_FIELDS),
            metadata=select_fields(row, *_VISIBLE),
        )
    except DatasetError as error:
        raise DatasetError(str(error), row=number, field=error.field) from None
