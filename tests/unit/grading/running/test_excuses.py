"""Skips and expected failures count as passed only where the gold patch has them."""

from __future__ import annotations

import pytest

from engine.grading.excuses import unexpected
from engine.types import TestKind, TestOutcome, TestResult

PASSED, SKIPPED, XFAIL = TestOutcome.PASSED, TestOutcome.SKIPPED, TestOutcome.XFAIL


@pytest.mark.parametrize(
    ("ran", "known", "wrong"),
    [
        ({"a": SKIPPED}, {"a": SKIPPED}, ""),
        ({"a": XFAIL}, {"a": PASSED}, "a xfail"),
        ({"a": SKIPPED}, {"a": XFAIL}, ""),
        ({"a": SKIPPED}, {"a": TestOutcome.FAILED}, ""),
        ({"a": SKIPPED}, {}, "a skipped"),
        ({"a[0x2]": SKIPPED}, {"a[0x1]": SKIPPED}, ""),
        ({"a[0x2]": SKIPPED}, {"a[0x1]": XFAIL}, "a[0x2] skipped"),
        ({"a[1]": SKIPPED, "a[2]": SKIPPED}, {"a[1]": SKIPPED}, "a[2] skipped"),
        ({"a[2]": SKIPPED, "a[3]": SKIPPED}, {"a[1]": SKIPPED}, "a[3] skipped"),
    ],
)
def test_skips_and_xfails_that_the_gold_patch_lacks_are_unexpected(
    ran: dict[str, TestOutcome], known: dict[str, TestOutcome], wrong: str
) -> None:
    tests = [
        TestResult(test_id=test, kind=TestKind.PASS_TO_PASS, outcome=outcome) for test, outcome in ran.items()
    ]
    assert unexpected(tests, known) == wrong
