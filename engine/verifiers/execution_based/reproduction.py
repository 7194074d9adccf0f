"""Reproduction tests: written for an issue without the answer, kept if they fail on the untouched tree."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from engine.types import TaskRow, TestOutcome
from engine.verifiers.execution_based.reports import RunStatus, TestReport
from engine.verifiers.execution_based.runs import TestRuns, TestSelection

TEST_FILE = "test_issue.py"
"""Path of a reproduction test, relative to the workdir."""
_REPEATS = 2


class Rejection(StrEnum):
    """Reason why a reproduction test is not kept."""

    NO_TEST = "no_test"
    """Its author wrote no test file."""
    DID_NOT_RUN = "did_not_run"
    """No test of it ran: it cannot be imported, contains no test, or ended the runner."""
    TIMED_OUT = "timed_out"
    """The test exceeded its time limit on the untouched repository."""
    PASSES = "passes"
    """No test of it fails on the untouched repository."""
    FLAKY = "flaky"
    """No test of it fails every time on the untouched repository."""
    TAMPERED = "tampered"
    """The test changed the test runner or test files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproductionTest:
    """A test file written for an issue."""

    author: str
    """Id of the trajectory that wrote it."""
    content: str
    """Text of the file; empty if the author wrote none."""

    @property
    def digest(self) -> str:
        """Return the hash of the content, 16 hex digits."""
        return hashlib.sha256(self.content.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    @property
    def selection(self) -> TestSelection:
        """Return the selection that adds the test file and runs it."""
        content = self.content.encode("utf-8", "surrogateescape")
        return TestSelection(files=(TEST_FILE,), added={TEST_FILE: content})


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """Result of the keep rule for one reproduction test."""

    test: ReproductionTest
    rejection: Rejection | None
    """None if it is kept."""
    failing: tuple[str, ...] = ()
    """Node ids that fail every time on the untouched repository; they alone count for a candidate."""
    detail: str = ""
    """Reason of the rejection, one sentence."""
    log: str = ""
    """End of the output of the first run."""

    @property
    def kept(self) -> bool:
        """Return whether candidates are judged by it."""
        return self.rejection is None


async def examine(runs: TestRuns, row: TaskRow, test: ReproductionTest) -> Examination:
    """Apply the keep rule: a test runs, and fails every time on the untouched repository.

    Raises:
        SandboxError: infrastructure failed in every attempt.
    """
    if not test.content.strip():
        return Examination(test=test, rejection=Rejection.NO_TEST, detail=f"there is no {TEST_FILE}")
    reports: list[TestReport] = []
    for repeat in range(_REPEATS):
        reports.append(await runs.untouched(row, test.selection, repeat=repeat))
        if rejected := _rejected(reports[-1]):
            rejection, detail = rejected
            return Examination(test=test, rejection=rejection, detail=detail, log=reports[0].log)
    failing = [_failed(report) for report in reports]
    always_failing = tuple(name for name in failing[0] if all(name in names for names in failing))
    if always_failing:
        return Examination(test=test, rejection=None, failing=always_failing, log=reports[0].log)
    passes = not any(failing)
    return Examination(
        test=test,
        rejection=Rejection.PASSES if passes else Rejection.FLAKY,
        detail="no test fails" if passes else "its tests fail in some runs only",
        log=reports[0].log,
    )


def _rejected(report: TestReport) -> tuple[Rejection, str] | None:
    """Return the reason to reject a test with this report; None if its outcomes decide."""
    if report.status is RunStatus.TIMED_OUT:
        return Rejection.TIMED_OUT, report.detail
    if report.status is RunStatus.TAMPERED:
        return Rejection.TAMPERED, report.detail
    ran = [
        test
        for test, outcome in report.outcomes.items()
        if outcome in (TestOutcome.PASSED, TestOutcome.FAILED)
    ]
    if report.status is RunStatus.RAN and ran:
        return None
    broken = ", ".join(f"{test} {outcome}" for test, outcome in list(report.outcomes.items())[:3])
    return Rejection.DID_NOT_RUN, report.detail or broken or "no test was collected"


def _failed(report: TestReport) -> Sequence[str]:
    """Return the tests that failed; a test that ended with an error did not reach its assertions."""
    return [test for test, outcome in report.outcomes.items() if outcome is TestOutcome.FAILED]
