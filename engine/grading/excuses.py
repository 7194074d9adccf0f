"""Tests that count as passed although they were skipped or failed as expected.

Official rules count such a test as passed, even if code under test called ``pytest.xfail`` or
``pytest.skip``. Here it counts only if it did not pass under the gold patch either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from engine.grading.counterfactual.base import Reference
from engine.grading.evidence import describe
from engine.grading.grades import with_notes
from engine.types import Grade, TestOutcome, TestResult, Verdict

_EXCUSES = frozenset({TestOutcome.XFAIL, TestOutcome.SKIPPED})


def excused(tests: Sequence[TestResult]) -> dict[str, TestOutcome]:
    """Return test → outcome of the tests that were skipped or failed as expected."""
    return {test.test_id: test.outcome for test in tests if test.outcome in _EXCUSES}


def unexpected(tests: Sequence[TestResult], known: Mapping[str, TestOutcome]) -> str:
    """Return a description of the excused tests that the gold patch passes; empty without any.

    A test without an outcome under the gold patch counts as passed there. The exception is a test in place of
    a missing one of the same function and outcome: some names contain addresses.

    Args:
        tests: all tests of a run.
        known: test → outcome under the gold patch.
    """
    ran = {test.test_id for test in tests}
    missing = Counter((_function(test), outcome) for test, outcome in known.items() if test not in ran)
    wrong: dict[str, TestOutcome] = {}
    for test, outcome in excused(tests).items():
        if test in known:
            if known[test] is TestOutcome.PASSED:
                wrong[test] = outcome
        elif missing[_function(test), outcome]:
            missing[_function(test), outcome] -= 1
        else:
            wrong[test] = outcome
    return describe(wrong)


def _function(test: str) -> str:
    """Return a test's name without its parameters."""
    return test.partition("[")[0]


def fail_unproven_skips(grade: Grade, reference: Reference | None) -> Grade:
    """Fail a grade that depends on skips or expected failures that the gold patch does not have."""
    if not grade.reward or not (tests := excused(grade.tests)):
        return grade
    if reference is None:
        return with_notes(
            grade, f"{len(tests)} skipped or expectedly failing tests count as in official reports"
        )
    if not (wrong := unexpected(grade.tests, reference.outcomes)):
        return grade
    return with_notes(
        replace(grade, verdict=Verdict.FAILED, reward=0.0), f"{wrong}, but not under the gold patch"
    )
