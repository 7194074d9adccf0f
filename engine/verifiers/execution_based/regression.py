"""Regression tests: tests of the repository that pass on the untouched tree and touch files of candidates.

A test touches a file if its test file imports it, or if it executes a line of it and the image's pytest can
record that. A dataset's own script selects its tests itself; all that pass on the untouched tree count. All
candidates of a task run the same tests, so that their numbers of passes can be compared.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from engine.datasets.paths import is_test_path
from engine.errors import DatasetError, PatchError, SandboxError
from engine.patches.apply import touched
from engine.patches.trees import is_plain
from engine.sandbox.base import Sandbox
from engine.types import TaskRow
from engine.verifiers.execution_based.commands import PytestCommand, regression_script
from engine.verifiers.execution_based.imports import imported_modules, is_imported, module_names
from engine.verifiers.execution_based.reports import TestReport
from engine.verifiers.execution_based.runs import TestRuns, TestSelection

_LIST_S = 60.0
_LIST_BYTES = 4 << 20
_BATCH_FILES = 64
_LIST = f"find . -name '.?*' -prune -o -type f -name '*.py' -print0 | head -c {_LIST_BYTES // 2}"
_TEST_FILE = re.compile(r"test_.*\.py|.*_test\.py")
"""File names that pytest collects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegressionSuite:
    """The regression tests of a task's candidates."""

    tests: tuple[str, ...] = ()
    """Node ids."""
    changed: tuple[str, ...] = ()
    """Python files that any candidate changes, except tests."""
    untested: tuple[str, ...] = ()
    """Changed files that no regression test touches."""
    failing: tuple[str, ...] = ()
    """Tests that touch changed files and do not always pass on the untouched tree."""
    files_left_out: int = 0
    """Test files beyond the limit, which were not tried."""
    signs: tuple[str, ...] = ()
    """Signs of tampering in runs of the untouched repository."""
    script: str = ""
    """The dataset's own script that runs the tests; empty if pytest runs them."""

    @property
    def selection(self) -> TestSelection:
        """Return the tests to run."""
        files = () if self.script else tuple(dict.fromkeys(map(_file, self.tests)))
        return TestSelection(files=files, signs=self.signs, script=self.script)


async def find_regression_tests(
    runs: TestRuns, row: TaskRow, patches: Iterable[str], *, max_files: int = 40, repeats: int = 2
) -> RegressionSuite:
    """Return the regression tests of a task for its candidates' patches.

    Args:
        patches: patches of all candidates to compare; invalid ones are ignored.
        max_files: maximum number of test files to run; those that import a changed file come first.
        repeats: runs on the untouched tree, all of which a test must pass.

    Raises:
        DatasetError: the repository's tests do not run.
        SandboxError: infrastructure failed in every attempt.
    """
    changed = await asyncio.to_thread(_changed, tuple(patches))
    if script := regression_script(row):
        reports = await _untouched(runs, row, TestSelection(files=(), script=script), repeats)
        tests = _always_passing(reports[0].outcomes, reports)
        failing = tuple(test for test in reports[0].outcomes if test not in tests)
        return RegressionSuite(
            tests=tests, changed=changed, failing=failing, signs=_signs(reports), script=script
        )
    if not changed:
        return RegressionSuite()
    sources, modules = await runs.inspect(row, _test_files)
    importing = await asyncio.to_thread(_importing, sources, modules, changed)
    command = PytestCommand.of(row)
    tried = [*importing, *(path for path in sources if path not in importing and command.traces)]
    selection = TestSelection(files=tuple(tried[:max_files]))
    if not selection.files:
        return RegressionSuite(changed=changed, untested=changed)
    reports = await _untouched(runs, row, selection, repeats, trace=command.traces)
    touching = {
        test: files
        for test in reports[0].outcomes
        if (files := _touched(test, reports[0], importing, changed))
    }
    tests = _always_passing(touching, reports)
    covered = {path for test in tests for path in touching[test]}
    return RegressionSuite(
        tests=tests,
        changed=changed,
        untested=tuple(path for path in changed if path not in covered),
        failing=tuple(test for test in touching if test not in tests),
        files_left_out=len(tried) - len(selection.files),
        signs=_signs(reports),
    )


async def _untouched(
    runs: TestRuns, row: TaskRow, selection: TestSelection, repeats: int, *, trace: bool = False
) -> list[TestReport]:
    """Return reports of runs on the untouched tree. Raises DatasetError if no test runs."""
    reports: list[TestReport] = []
    for repeat in range(repeats):
        reports.append(await runs.untouched(row, selection, repeat=repeat, trace=trace and repeat == 0))
        if not reports[0].outcomes:
            detail = reports[0].detail or "no test was collected"
            raise DatasetError(
                f"task {row.task.instance_id}: the tests of its repository do not run: {detail}"
            )
    return reports


def _always_passing(tests: Iterable[str], reports: Collection[TestReport]) -> tuple[str, ...]:
    return tuple(test for test in tests if all(report.passed((test,)) for report in reports))


def _signs(reports: Iterable[TestReport]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(sign for report in reports for sign in report.signs))


def _changed(patches: Collection[str]) -> tuple[str, ...]:
    """Return the Python files that patches change, without tests."""
    changed: set[str] = set()
    for patch in dict.fromkeys(patches):
        try:
            names = touched(patch)
        except PatchError:
            continue
        changed.update(name for name in names if name.endswith(".py") and not is_test_path(name))
    return tuple(sorted(changed))


async def _test_files(box: Sandbox) -> tuple[dict[str, bytes], frozenset[tuple[str, ...]]]:
    """Return the test files of the repository, and the names of its modules."""
    listed = await box.exec(_LIST, timeout_s=_LIST_S, cwd=box.spec.workdir, output_cap=_LIST_BYTES)
    if listed.timed_out:
        raise SandboxError(f"the repository's files were not listed within {_LIST_S:g} s")
    paths = (path.removeprefix("./") for path in listed.stdout.decode("utf-8", "replace").split("\0")[:-1])
    names = sorted(path for path in paths if is_plain(path) and not path.startswith("-"))
    tests = [path for path in names if _TEST_FILE.fullmatch(PurePosixPath(path).name)]
    contents: dict[str, bytes] = {}
    for start in range(0, len(tests), _BATCH_FILES):
        states = await box.fetch_files(tests[start : start + _BATCH_FILES])
        contents |= {name: state.data for name, state in states.items()}
    return contents, module_names(names)


def _importing(
    sources: Mapping[str, bytes], known: Collection[tuple[str, ...]], changed: Collection[str]
) -> dict[str, tuple[str, ...]]:
    """Return test file → changed files that it imports, for those that import any.

    Args:
        known: names of the repository's modules.
    """
    importing: dict[str, tuple[str, ...]] = {}
    for path, source in sources.items():
        modules = imported_modules(path, source, known)
        if imported := tuple(name for name in changed if is_imported(name, modules)):
            importing[path] = imported
    return importing


def _touched(
    test: str, report: TestReport, importing: Mapping[str, tuple[str, ...]], changed: Collection[str]
) -> tuple[str, ...]:
    """Return the changed files that a test touches."""
    executed = set(report.executed.get(test, ()))
    imported = importing.get(_file(test), ())
    return tuple(path for path in changed if path in executed or path in imported)


def _file(test: str) -> str:
    return PurePosixPath(test.partition("::")[0]).as_posix()
