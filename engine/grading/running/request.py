"""Request to run an answer's tests in a sandbox."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from engine.types import TaskAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """Tests to run on the current tree of a sandbox."""

    answer: TaskAnswer
    timeout_s: float
    changed: Collection[str]
    """Paths, relative to the workdir, that the graded patch changed."""
    overlay: Mapping[str, bytes]
    """Path, relative to the workdir or absolute, → content of test files to write before the tests
    start."""
