"""Tests that count as passed although they were skipped or failed as expected.

Official rules count such a test as passed, whoever marked it: also code under test that calls
``pytest.xfail`` or ``pytest.skip``. Here it does only where it ended so under the gold patch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from engine.grading.counterfactual.base import Reference
from engine.grading.evidence import describe
from engine.grading.grades import noted
from engine.types import Grade, TestOutcome, TestResult, Verdict

_EXCUSES = frozenset({TestOutcome.XFAIL, TestOutcome.SKIPPED})


def excused(tests: tuple[TestResult, ...]) -> dict[str, TestOutcome]:
    """Return test → outcome of the tests that were skipped or failed as expected."""
    return {test.test_id: test.outcome for test in tests if test.outcome in _EXCUSES}


def unexpected(found: Mapping[str, TestOutcome], known: Mapping[str, TestOutcome]) -> str:
    """Return a description of the excused tests that ended otherwise under the gold patch; empty without any.

    Args:
        found: see ``excused``.
        known: test → outcome under the gold patch, where it did not pass.
    """
    return describe({test: outcome for test, outcome in found.items() if known.get(test) is not outcome})


def without_excuses(grade: Grade, reference: Reference | None) -> Grade:
    """Fail a grade that rests on skips or expected failures which the gold patch does not have."""
    if not (found := excused(grade.tests)):
        return grade
    if reference is None:
        return noted(grade, f"{len(found)} skipped or expectedly failing tests count as in official reports")
    if not (wrong := unexpected(found, reference.outcomes)):
        return grade
    return noted(replace(grade, verdict=Verdict.FAILED, reward=0.0), f"{wrong}, but not under the gold patch")
