"""Interface of a language: entities of its files, and packages, tests and their results of a tree."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from engine.sandbox.base import Sandbox
from engine.testing.testrun import TestRun
from engine.types import GradeRule

WORKDIR = "/testbed"
"""Folder of a task's tree in sandboxes."""
MODULE = "<module>"
"""Name of the statements of a file outside of all entities."""


class UnsuitableError(Exception):
    """A commit cannot become a task.

    Args:
        reason: name of the reason in the funnel.
        detail: log behind it.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


def next_month(date: datetime.datetime) -> datetime.datetime:
    """Return the start of the month after a date, so that commits of a month share their packages."""
    start = date.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)


@dataclass(frozen=True, slots=True)
class EntityChange:
    """Difference between two versions of a file; comments and formatting do not count."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


class Environment(Protocol):
    """Packages of a tree, as sandboxes mount them, and its tests."""

    @property
    def key(self) -> str:
        """Return a short name that differs between different packages."""

    @property
    def pins(self) -> tuple[str, ...]:
        """Return the exact versions of its packages."""

    @property
    def mounts(self) -> Mapping[str, str]:
        """Return path in sandboxes → folder on this machine."""

    @property
    def variables(self) -> Mapping[str, str]:
        """Return the environment variables of all commands."""

    def command(self, tests: Sequence[str]) -> str:
        """Return the test command of a task.

        Args:
            tests: test files, or ids of tests ``FILE::NAME``.
        """

    async def run(self, sandbox: Sandbox, tests: Sequence[str], *, timeout_s: float) -> TestRun:
        """Run tests in their order and return the outcomes. Raises SandboxError if the sandbox fails.

        Args:
            tests: as for ``command``.
        """


class Project(Protocol):
    """A tree whose files declare what it needs."""

    def environment(self, date: datetime.datetime, added: Sequence[str]) -> Environment:
        """Return its packages as of a date; downloaded on first use.

        Args:
            date: time of the commit.
            added: packages that it needs besides those that it declares.

        Raises:
            UnsuitableError: no versions fit.
            PreflightError: the package index cannot be reached.
        """

    def missing_packages(self, log: str) -> Sequence[str]:
        """Return the packages whose modules the output of tests misses."""


class Language(Protocol):
    """A programming language."""

    @property
    def name(self) -> str:
        """Return its name in settings, rows and fences of Markdown."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Return the suffixes of its files."""

    @property
    def tools(self) -> str:
        """Return the versions of the programs on which results of tests depend."""

    @property
    def grade_rule(self) -> GradeRule:
        """Return the rule that judges runs of ``Environment.command``."""

    @property
    def writes_tests(self) -> bool:
        """Return whether a model can write tests of commits without any."""

    def is_code(self, path: str) -> bool:
        """Return whether a file is source code of the product."""

    def is_test_file(self, path: str) -> bool:
        """Return whether a file contains tests, as opposed to their support."""

    def module_name(self, path: str) -> str:
        """Return the name by which users know a source file."""

    def changed_entities(self, old: str, new: str) -> EntityChange:
        """Compare two versions of a file.

        Args:
            old: text before the change; empty where the file does not exist.
            new: text after it.

        Raises:
            SyntaxError: a version cannot be parsed.
            HostileInputError: a version exceeds the parser's limits.
        """

    def example(self, text: str, test: str) -> str:
        """Return the code of a test that runs by itself; an empty text if there is none.

        Args:
            text: the test's file.
            test: its id, ``FILE::NAME``.
        """

    def test_names(self, test: str) -> set[str]:
        """Return the names by which a text reveals a hidden test.

        Args:
            test: its id, ``FILE::NAME``.
        """

    def definitions(self, files: Mapping[str, str], names: Iterable[tuple[str, str]]) -> str:
        """Return the code of functions and classes; those that cannot be found are left out.

        Args:
            files: path → text.
            names: path and qualified name of each.
        """

    def open_project(self, tree: Path) -> Project:
        """Return the project at the root of a tree; none of its code is executed.

        Raises:
            UnsuitableError: it cannot be tested here.
        """
