"""Rule: the whole map of outcomes equals the expected one, as in R2E-Gym.

``strict`` is R2E-Gym's rule: the same tests with the same statuses, so a test that is expected to fail must
fail. ``tolerant`` requires only that every test expected to pass passes. In both modes pytest's sealed record
must confirm the log.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.config.rollout import GradingConfig
from engine.datasets.importers.formats.r2e_gym import PARSER, plain_name
from engine.grading.evidence import (
    Evidence,
    Judgement,
    contradictions,
    describe,
    outcome_of,
    statuses_of,
)
from engine.types import TaskRow, TestKind, TestResult


def judge(row: TaskRow, evidence: Evidence, config: GradingConfig) -> Judgement:
    """Apply the rule described in the module's docstring."""
    answer = row.answer
    parser = answer.log_parser or PARSER
    statuses = _comparable(statuses_of(row, evidence.shown, parser))
    expected = _comparable(answer.expected)
    wrong = differences(statuses, expected, strict=config.map_rule == "strict")
    fixed = set(answer.fail_to_pass)
    tests = tuple(
        TestResult(
            test_id=test,
            kind=TestKind.FAIL_TO_PASS if test in fixed else TestKind.PASS_TO_PASS,
            outcome=outcome_of(statuses.get(test)),
        )
        for test, status in expected.items()
        if status == "PASSED"
    )
    if wrong:
        return Judgement(passed=False, tests=tests, detail=describe(wrong))
    claimed = [test for test, status in statuses.items() if status == "PASSED" and test in expected]
    return Judgement(passed=True, tests=tests, signs=contradictions(row, evidence, claimed, parser))


def differences(statuses: Mapping[str, str], expected: Mapping[str, str], *, strict: bool) -> dict[str, str]:
    """Return test → description of its difference; empty when the maps agree."""
    wrong = {}
    for test, status in expected.items():
        actual = statuses.get(test)
        if strict and actual != status:
            wrong[test] = f"{(actual or 'missing').lower()} instead of {status.lower()}"
        elif not strict and status == "PASSED" and actual != "PASSED":
            wrong[test] = (actual or "missing").lower()
    if strict:
        wrong.update({test: "not expected" for test in statuses if test not in expected})
    return wrong


def _comparable(statuses: Mapping[str, str]) -> dict[str, str]:
    """Return names without colours and messages; lines without a name are ignored, as published."""
    cleaned = {plain_name(test): status for test, status in statuses.items()}
    cleaned.pop("", None)
    return cleaned
