"""Commands that run tests of a task's repository with pytest, from the visible part of a row."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from engine.testing.testrun import driver_command
from engine.testing.toolchain import DRIVER
from engine.types import TaskAnswer, TaskRow

_OPTIONS = ("--continue-on-collection-errors",)
"""A test file that a patch or its author broke must not keep the others from running."""
_OWN_PYTEST = ("python3", "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider")


def visible_row(row: TaskRow) -> TaskRow:
    """Return a task with only the part of its answer that sandboxes of agents and pytest need."""
    roots = PytestCommand.of(row).roots
    answer = TaskAnswer(
        gold_patch="",
        setup_patch=row.answer.setup_patch,
        hidden_paths=row.answer.hidden_paths,
        test_command="" if roots is None else driver_command([], roots),
    )
    return replace(row, answer=answer)


def regression_script(row: TaskRow) -> str:
    """Return the dataset's own script for a task's regression tests; empty without one.

    R2E-Gym's variant of SWE-bench has one (``run_tests_regression``), for runners other than pytest too.
    """
    return str(row.answer.metadata.get("run_tests_regression") or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class PytestCommand:
    """Start of pytest in a task's image."""

    roots: tuple[str, ...] | None
    """Import roots of the code under test, for the driver of images with our toolchain; None if the
    image has its own pytest."""

    @classmethod
    def of(cls, row: TaskRow) -> PytestCommand:
        """Return the command for a task's image, derived from its test command."""
        if DRIVER not in row.answer.test_command:
            return cls(roots=None)
        words = shlex.split(row.answer.test_command)
        return cls(roots=tuple(after for word, after in pairwise(words) if word == "--root"))

    @property
    def traces(self) -> bool:
        """Return whether the lines that each test executes can be recorded."""
        return self.roots is not None

    def script(self, tests: Sequence[str], *, path: str, trace: bool = False) -> str:
        """Return the script that runs tests.

        Args:
            tests: files or node ids, relative to the workdir.
            path: ``PATH`` with the project's own Python first; empty without one.
            trace: whether to record executed lines.
        """
        if self.roots is not None:
            traced = self.roots if trace else ()
            return driver_command([*_OPTIONS, *tests], self.roots, trace_roots=traced)
        search = f"export PATH={shlex.quote(path)}\n" if path else ""
        return search + shlex.join([*_OWN_PYTEST, *_OPTIONS, *tests])
