"""Commits of a history, as ``history_program`` wrote them."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from engine.errors import DatasetError


class ChangedFile(BaseModel):
    """A file that a commit changes."""

    model_config = ConfigDict(frozen=True)
    path: str
    mode: str
    """Mode after the change, e.g. ``100644``; zeros of a deleted file."""
    added: NonNegativeInt | None
    deleted: NonNegativeInt | None
    """Numbers of lines; None of a binary file."""


class Commit(BaseModel):
    """A commit with its change."""

    model_config = ConfigDict(frozen=True)
    sha: str
    parents: tuple[str, ...]
    date: datetime.datetime
    """Time of the commit, UTC."""
    message: str
    files: tuple[ChangedFile, ...]
    patch: str | None
    """The whole change in git's format; None for merges, root commits and very large changes."""
    contents: Mapping[str, tuple[str | None, str | None]] | None
    """Path → text before and after; None of a missing file, or one that is no UTF-8."""

    @property
    def subject(self) -> str:
        """Return the first line of the message."""
        return self.message.strip().partition("\n")[0]


def read_commits(lines: TextIO, path: Path) -> Iterator[Commit]:
    """Iterate over the commits of an open file, and close it. Raises DatasetError if it is damaged."""
    with lines:
        for line in lines:
            yield _parse(line, path)


def _parse(line: str, path: Path) -> Commit:
    try:
        commit: Any = Commit.model_validate_json(line)
    except (ValidationError, ValueError) as error:
        raise DatasetError(f"{path} is damaged, remove it: {str(error)[:300]}") from error
    return commit  # type: ignore[no-any-return]
