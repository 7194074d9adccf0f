"""Filter of a patch's graded part: all changes except tests, their configuration and installed packages.

The files that changed when the patch was applied decide, never its text. Files that the gold patch touches
are always admitted, whatever their names (``django/test/x.py`` and its neighbours are code), and changes of
build files that concern the product alone. If the solution is no patch and all tests are outside of the
workdir, tests and build files in it are admitted, pytest's configuration is not: the task may ask for them.
Left-out files and suspicious added lines become findings. Names are listed in ``engine.datasets.paths``. A
task's own tests are protected, whatever their names, and nothing may be created at their paths or their
folders' paths.
"""

from __future__ import annotations

import re
import stat
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from engine.datasets.paths import (
    configures_pytest,
    innermost_test_folder,
    is_configuration,
    is_installed,
    is_test_code,
    is_test_folder,
    may_be_shipped,
)
from engine.grading.submission.build_files import is_product_change
from engine.patches.apply import Changes
from engine.patches.sections import split_patch
from engine.patches.structure import header_paths
from engine.patches.trees import FileState, Tree, path_below
from engine.types import FindingKind, TamperFinding, TaskRow

_RUNNER = frozenset(
    {
        "pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "unittest2", "nose", "tox", "xdist",
        "execnet", "hypothesis", "coverage", "exceptiongroup", "tomli", "pygments",
    }
)  # fmt: skip
_ROOTS = frozenset({"src", "lib", "python"})
"""Folders that projects put on the import path besides their root."""
_PYTHON = (".py", ".pyi", ".pyx", ".so")
_LOADED = (".py", ".so", ".pyc")
_SUSPICIOUS = re.compile(
    r"os\._exit|_pytest\b|import pluggy|pytest\.(?:skip|exit|hookimpl)|pytest_(?:runtest|collection|session)"
    r"|TestReport|sys\.settrace|sitecustomize|PYTEST_ADDOPTS|PYTEST_CURRENT_TEST|/proc/self|atexit\.register"
    r"|gc\.get_objects|gc\.get_referrers|sys\._getframe|trainyard|>>>>> |junit|reward\.(?:txt|json)"
    r"|[\"'](?:PASSED|FAILED)\b|\bunittest\.case|TestCase\.run\b|start_new_session|os\.setsid|/logs/verifier"
)
_DETAIL_CHARS = 200
_MAX_LINES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class FilteredPatch:
    """The graded changes of a patch."""

    changes: Changes
    left_out: tuple[str, ...] = ()
    """Changed paths that are not graded, sorted."""
    findings: tuple[TamperFinding, ...] = ()


class PatchFilter:
    """Filter of the paths that a patch for a task may change.

    Args:
        row: its gold patch, test files and hidden paths define what counts as code and what as tests.
    """

    def __init__(self, row: TaskRow) -> None:
        answer, workdir = row.answer, row.task.workdir
        self._gold = _paths_of(answer.gold_patch)
        self._tests = {
            *_below(workdir, answer.test_files),
            *_below(workdir, answer.binary_files),
            *_paths_of(answer.test_patch),
        }
        self._hidden = frozenset(_below(workdir, answer.hidden_paths))
        required = (test.partition("::")[0] for test in (*answer.fail_to_pass, *answer.pass_to_pass))
        folders_of_tests = {innermost_test_folder(path) for path in (*self._tests, *required)}
        self._shipped = {
            folder for folder in map(innermost_test_folder, self._gold) if may_be_shipped(folder)
        } - folders_of_tests
        self._packages = frozenset(map(_package_of, self._gold)) - {()}
        tests = self._tests | self._hidden
        self._tests_outside = not self._gold and bool(tests) and all(path.startswith("/") for path in tests)
        self._test_folders = {parent for test in self._tests | self._hidden for parent in _parents(test)}

    def visible(self, tree: Tree) -> dict[str, FileState]:
        """Return the files of a tree that agents see: all except the task's hidden paths."""
        return {path: state for path, state in tree.items() if not self._is_hidden(path)}

    def protects(self, path: str) -> bool:
        """Return whether no graded patch can change a file.

        Args:
            path: as ``path_below`` returns it for the workdir.
        """
        return path.startswith("/") or self._kind(path, None, None) is not None

    def admit(self, before: Tree, changes: Changes) -> FilteredPatch:
        """Split the changes of a patch into graded and left-out ones."""
        packages = frozenset(map(_package_of, before)) - {()}
        kinds = {
            path: self._kind(path, before.get(path), changes.files.get(path), packages)
            for path in changes.paths
        }
        admitted = Changes(
            {path: state for path, state in changes.files.items() if kinds[path] is None},
            tuple(path for path in changes.deleted if kinds[path] is None),
        )
        left_out = {path: kind for path, kind in kinds.items() if kind is not None}
        findings = [TamperFinding(kind=kind, detail=path) for path, kind in left_out.items()]
        return FilteredPatch(
            changes=admitted,
            left_out=tuple(left_out),
            findings=tuple(dict.fromkeys([*findings, *_suspicious(before, admitted)])),
        )

    def without_left_out(self, before: Tree, patch: str) -> tuple[str, FilteredPatch]:
        """Drop the sections of a patch that name only left-out files.

        For patches that do not apply because of these sections; the filter itself is unaffected.

        Returns:
            The remaining text, and the dropped changes.
        """
        kept: list[str] = []
        dropped: dict[str, FindingKind] = {}
        for part in split_patch(patch):
            kinds = {path: self._kind(path, before.get(path), None) for path in part.paths}
            reasons = {path: kind for path, kind in kinds.items() if kind is not None}
            if reasons and len(reasons) == len(kinds):
                dropped.update(reasons)
            else:
                kept.append(part.text)
        findings = tuple(TamperFinding(kind=kind, detail=path) for path, kind in dropped.items())
        nothing = Changes({}, ())
        return "".join(kept), FilteredPatch(changes=nothing, left_out=tuple(dropped), findings=findings)

    def _kind(
        self,
        path: str,
        old: FileState | None,
        new: FileState | None,
        packages: frozenset[tuple[str, ...]] = frozenset(),
    ) -> FindingKind | None:
        """Return the reason why a path may not be changed; None when it may.

        Args:
            path: as ``path_below`` returns it for the workdir.
            old: the file before; None if it is new.
            new: the file after; None if it is deleted.
            packages: packages of the tree's files, as returned by ``_package_of``.
        """
        if self._is_hidden(path):
            return FindingKind.TESTS_EDITED
        if path in self._gold:
            return None
        pure = PurePosixPath(path)
        if is_installed(path):
            return FindingKind.INSTALLED_EDITED
        if self._configures(path) and not _builds_product(path, old, new):
            return FindingKind.CONFIGURATION_EDITED
        if old is None and _shadows(pure, new) and not self._extends(pure, packages):
            return FindingKind.CONFIGURATION_EDITED
        if (
            (is_test_code(path) and not self._tests_outside and not self._is_shipped(path))
            or path in self._tests
            or not self._tests.isdisjoint(_parents(path))
        ):
            return FindingKind.TESTS_EDITED
        if new is not None and (path in self._test_folders or _replaces_tests(pure, new)):
            return FindingKind.TESTS_EDITED
        return None

    def _configures(self, path: str) -> bool:
        return configures_pytest(path) if self._tests_outside else is_configuration(path)

    def _extends(self, path: PurePosixPath, packages: frozenset[tuple[str, ...]]) -> bool:
        """Return whether a new file belongs to a package of the product, whatever its name."""
        package = _package_of(str(path))
        return package in self._packages or (package in packages and path.name != "__init__.py")

    def _is_shipped(self, path: str) -> bool:
        """Return whether a file is a helper of tests that the product ships, as the gold patch shows."""
        return innermost_test_folder(path) in self._shipped and not is_test_code(PurePosixPath(path).name)

    def _is_hidden(self, path: str) -> bool:
        return any(path == hidden or path.startswith(f"{hidden}/") for hidden in self._hidden)


def _paths_of(patch: str) -> set[str]:
    """Return the paths in a trusted patch."""
    parts = split_patch(patch)
    paths = {path for part in parts for path in part.paths}
    return paths if all(part.paths for part in parts) else paths | header_paths(patch)


def _below(workdir: str, paths: Iterable[str]) -> set[str]:
    """Return the results of ``path_below`` for paths."""
    return {path_below(workdir, path) for path in paths}


def _parents(path: str) -> list[str]:
    return [path[:index] for index, character in enumerate(path) if character == "/"]


def _builds_product(path: str, old: FileState | None, new: FileState | None) -> bool:
    """Return whether a change of a build file concerns the product alone."""
    if old is None or new is None or old.git_mode != new.git_mode or stat.S_ISLNK(new.mode):
        return False
    return is_product_change(path, old.data, new.data)


def _replaces_tests(path: PurePosixPath, new: FileState) -> bool:
    """Return whether a symlink has the name of a folder of tests."""
    return stat.S_ISLNK(new.mode) and is_test_folder(path.name)


def _import_place(path: str) -> tuple[str, ...]:
    """Return the parts of a path, its import root first (empty for the top folder)."""
    parts = PurePosixPath(path).parts
    return parts if len(parts) > 1 and parts[0] in _ROOTS else ("", *parts)


def _package_of(path: str) -> tuple[str, ...]:
    """Return import root and name of a Python file's package; empty for other files."""
    place = _import_place(path)
    return place[:2] if len(place) > 2 and path.endswith(_PYTHON) else ()


def _shadows(path: PurePosixPath, new: FileState | None) -> bool:
    """Return whether a new file or link at an import root would shadow the standard library or the runner."""
    is_link = new is not None and stat.S_ISLNK(new.mode)
    if path.suffix not in _LOADED and not is_link:
        return False
    top = _import_place(str(path))[1].partition(".")[0]
    return top in sys.stdlib_module_names or top in _RUNNER


def _suspicious(before: Tree, changes: Changes) -> list[TamperFinding]:
    findings: list[TamperFinding] = []
    for path, state in changes.files.items():
        known = frozenset(_lines(before[path])) if path in before else frozenset()
        smells = [
            TamperFinding(kind=FindingKind.SUSPICIOUS_CODE, detail=f"{path}: {line.strip()}"[:_DETAIL_CHARS])
            for line in _lines(state)
            if line not in known and _SUSPICIOUS.search(line)
        ]
        findings += smells[:_MAX_LINES]
    return findings


def _lines(state: FileState) -> list[str]:
    return state.data.decode("utf-8", "replace").split("\n")
