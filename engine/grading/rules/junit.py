"""Rule: every required test passes in a JUnit report; without a list, every test of the report.

A test is looked up by pytest's node id, ``class.name``, ``class::name`` or its name alone if unique.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.config.rollout import GradingConfig
from engine.grading.evidence import (
    Evidence,
    Judgement,
    describe,
    overlooked,
    required,
    unconfirmed,
    unconfirmed_success,
)
from engine.testing.testrun import TestCase, junit_address
from engine.types import TaskAnswer, TaskRow, TestKind, TestOutcome, TestResult

_GOOD = frozenset({TestOutcome.PASSED, TestOutcome.XFAIL})
_CONFIRMED = frozenset({"PASSED", "XFAIL", "XPASS"})


def judge(row: TaskRow, evidence: Evidence, config: GradingConfig) -> Judgement:  # noqa: ARG001
    """Apply the rule described in the module's docstring."""
    answer = row.answer
    cases = evidence.cases
    if not cases:
        return Judgement(passed=False, detail="there is no JUnit report, or it is empty")
    by_name = _index(cases)
    tests = tuple(
        TestResult(test_id=test, kind=kind, outcome=case.outcome, seconds=case.seconds)
        for test, kind in required(answer)
        for case in (_find(test, cases, by_name),)
    )
    wrong = {test.test_id: test.outcome for test in tests if test.outcome not in _GOOD}
    if not tests:
        tests = tuple(_result(address, case) for address, case in cases.items())
        good = _GOOD | {TestOutcome.SKIPPED}
        wrong = {test.test_id: test.outcome for test in tests if test.outcome not in good}
    if wrong:
        return Judgement(passed=False, tests=tests, detail=describe(wrong))
    return Judgement(passed=True, tests=tests, signs=_signs(answer, evidence))


def _result(address: tuple[str, str], case: TestCase) -> TestResult:
    name = ".".join(address)
    return TestResult(test_id=name, kind=TestKind.PASS_TO_PASS, outcome=case.outcome, seconds=case.seconds)


def _index(cases: Mapping[tuple[str, str], TestCase]) -> dict[str, TestCase | None]:
    """Return the cases by their alternative names; None if a name is not unique."""
    by_name: dict[str, TestCase | None] = {}
    for (classname, name), case in cases.items():
        for alias in {f"{classname}.{name}", f"{classname}::{name}", name}:
            by_name[alias] = None if alias in by_name else case
    return by_name


def _find(
    test: str, cases: Mapping[tuple[str, str], TestCase], by_name: Mapping[str, TestCase | None]
) -> TestCase:
    address = junit_address(test)
    missing = TestCase(address=address, outcome=TestOutcome.MISSING, seconds=0.0, exception="")
    return cases.get(address) or by_name.get(test) or missing


def _signs(answer: TaskAnswer, evidence: Evidence) -> tuple[str, ...]:
    """Return reasons to distrust the report: pytest's record lacks or contradicts required tests."""
    if not evidence.record_wanted:
        return ()
    wanted = [test for test, _ in required(answer) if "::" in test]
    if not wanted or evidence.record is None:
        return (*unconfirmed_success(evidence), *overlooked(evidence))
    outcomes = {junit_address(test): outcome for test, outcome in evidence.record.outcomes.items()}
    unseen = (test for test in wanted if outcomes.get(junit_address(test)) not in _CONFIRMED)
    return tuple(unconfirmed(test) for test in unseen)
