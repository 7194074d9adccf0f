"""Tests that count as passed although they were skipped or failed as expected.

Official rules count such a test as passed, whoever marked it: also code under test that calls
``pytest.xfail`` or ``pytest.skip``. Here it does only where it ended so under the gold patch.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.grading.evidence import describe
from engine.types import TestOutcome, TestResult

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
