"""Filter of a patch's graded part: all changes except tests, their configuration and installed packages.

That is decided by the files that changed when the patch was applied, never by its text. Files that the gold
patch touches are always admitted, whatever their names (``django/test/x.py`` is code). What is left out,
and suspicious added lines, become findings. To protect more: ``_kind``.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
import stat
import sys
from dataclasses import dataclass
from pathlib import PurePosixPath

from engine.datasets.paths import is_test_path
from engine.patches.apply import Changes
from engine.patches.sections import split_patch
from engine.patches.trees import FileState, Tree
from engine.types import FindingKind, TamperFinding, TaskRow

_CONFIGURATION = (
    "conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg",
    "pyproject.toml", "noxfile.py", ".coveragerc", "sitecustomize.py", "usercustomize.py", "*.pth",
    "*.egg-link", "entry_points.txt", "jest.config.*", "vitest.config.*", "karma.conf.*", ".mocharc*",
    "phpunit.xml*", ".rspec", "run_tests.sh", "package.json",
)  # fmt: skip
_INSTALLED = frozenset(
    {"site-packages", "dist-packages", ".venv", "venv", ".tox", ".nox", "node_modules", "__pycache__"}
)
_RUNNER = frozenset(
    {"pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "unittest2", "nose", "tox"}
)
_INSTALLED_NAMES = ("*.egg-info", "*.dist-info", "*.pyc")
_TEST_FOLDERS = frozenset({"tests", "test", "r2e_tests"})
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
        self._gold = {path for part in split_patch(row.answer.gold_patch) for path in part.paths}
        self._tests = frozenset(row.answer.test_files)
        self._hidden = frozenset(
            posixpath.relpath(posixpath.normpath(posixpath.join(row.task.workdir, path)), row.task.workdir)
            for path in row.answer.hidden_paths
        )

    def visible(self, tree: Tree) -> dict[str, FileState]:
        """Return the files of a tree that agents see: all except the task's hidden paths."""
        return {path: state for path, state in tree.items() if not self._is_hidden(path)}

    def admit(self, before: Tree, changes: Changes) -> FilteredPatch:
        """Split the changes of a patch into graded and left-out ones."""
        kinds = {path: self._kind(path, before.get(path), changes.files.get(path)) for path in changes.paths}
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

    def _kind(self, path: str, old: FileState | None, new: FileState | None) -> FindingKind | None:
        """Return the reason why a path may not be changed; None when it may."""
        if self._is_hidden(path):
            return FindingKind.TESTS_EDITED
        if path in self._gold:
            return None
        pure = PurePosixPath(path)
        if _INSTALLED & set(pure.parts) or any(_like(name, _INSTALLED_NAMES) for name in pure.parts):
            return FindingKind.INSTALLED_EDITED
        if _like(pure.name, _CONFIGURATION) or ".cargo" in pure.parts or (old is None and _shadows(pure)):
            return FindingKind.CONFIGURATION_EDITED
        if is_test_path(path) or path in self._tests:
            return FindingKind.TESTS_EDITED
        is_link = new is not None and stat.S_ISLNK(new.mode)
        if is_link and (pure.name in _TEST_FOLDERS or self._leads_to_tests(path)):
            return FindingKind.TESTS_EDITED
        return None

    def _is_hidden(self, path: str) -> bool:
        return any(path == hidden or path.startswith(f"{hidden}/") for hidden in self._hidden)

    def _leads_to_tests(self, path: str) -> bool:
        return any(test.startswith(f"{path}/") for test in self._tests)


def _shadows(path: PurePosixPath) -> bool:
    """Return whether a new file at the root would shadow the standard library or the test runner."""
    if path.suffix not in (".py", ".so", ".pyc"):
        return False
    top = path.parts[0].partition(".")[0]
    return top in sys.stdlib_module_names or top in _RUNNER


def _like(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _suspicious(before: Tree, changes: Changes) -> list[TamperFinding]:
    found: list[TamperFinding] = []
    for path, state in changes.files.items():
        known = frozenset(_lines(before[path])) if path in before else frozenset()
        smells = [
            TamperFinding(kind=FindingKind.SUSPICIOUS_CODE, detail=f"{path}: {line.strip()}"[:_DETAIL_CHARS])
            for line in _lines(state)
            if line not in known and _SUSPICIOUS.search(line)
        ]
        found += smells[:_MAX_LINES]
    return found


def _lines(state: FileState) -> list[str]:
    return state.data.decode("utf-8", "replace").split("\n")
