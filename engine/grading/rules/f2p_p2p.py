"""Rule: every test of FAIL_TO_PASS and PASS_TO_PASS passes.

From the driver's signed report: each required test is present and passed. From a log: swebench's own grading
decides (an expected failure counts as passed, a skipped test only if it is pass-to-pass), and pytest's sealed
record must confirm the log.
"""

from __future__ import annotations

from typing import Any

from engine.config.rollout import GradingConfig
from engine.grading.evidence import (
    Evidence,
    Judgement,
    contradictions,
    describe,
    instance_of,
    outcome_of,
    required,
    statuses_of,
)
from engine.grading.logs import swebench
from engine.grading.logs.parsers import find_parser
from engine.testing.testrun import TestRun
from engine.types import TaskAnswer, TaskRow, TestOutcome, TestResult


def judge(row: TaskRow, evidence: Evidence, config: GradingConfig) -> Judgement:  # noqa: ARG001
    """Apply the rule described in the module's docstring."""
    if evidence.signed is not None:
        return _by_report(row.answer, evidence.signed)
    return _by_log(row, evidence)


def official_report(row: TaskRow, log: str) -> dict[str, Any]:
    """Return swebench's per-instance report of a log, without the instance's name."""
    answer = row.answer
    return swebench.instance_report(
        log,
        instance=instance_of(row),
        parser_name=answer.log_parser,
        parser=find_parser(answer.log_parser),
        fail_to_pass=answer.fail_to_pass,
        pass_to_pass=answer.pass_to_pass,
        eval_type=_eval_type(answer),
    )


def _eval_type(answer: TaskAnswer) -> str:
    return str(answer.metadata.get("eval_type") or swebench.PASS_AND_FAIL)


def _by_report(answer: TaskAnswer, run: TestRun) -> Judgement:
    tests = tuple(
        TestResult(test_id=test, kind=kind, outcome=run.case(test).outcome, seconds=run.case(test).seconds)
        for test, kind in required(answer)
    )
    wrong = {test.test_id: test.outcome for test in tests if test.outcome is not TestOutcome.PASSED}
    return Judgement(passed=not wrong, tests=tests, detail=describe(wrong))


def _by_log(row: TaskRow, evidence: Evidence) -> Judgement:
    answer = row.answer
    report = official_report(row, evidence.judged)
    statuses = statuses_of(row, swebench.with_newlines(evidence.shown))
    required_statuses = {test: _status(test, statuses, _eval_type(answer)) for test, _ in required(answer)}
    tests = tuple(
        TestResult(test_id=test, kind=kind, outcome=outcome_of(required_statuses[test]))
        for test, kind in required(answer)
    )
    if not report["patch_successfully_applied"]:
        reason = report.get("infra_failure_reason", "")
        detail = "the log holds no valid test run" + (f" ({reason})" if reason else "")
        return Judgement(passed=False, tests=tests, detail=detail)
    if not report["resolved"]:
        failures = [test for kind in report["tests_status"].values() for test in kind["failure"]]
        return Judgement(
            passed=False,
            tests=tests,
            detail=describe({test: outcome_of(required_statuses.get(test)) for test in failures}),
        )
    counted = [test for kind in report["tests_status"].values() for test in kind["success"]]
    claimed = [test for test in counted if required_statuses.get(test) != "SKIPPED"]
    return Judgement(passed=True, tests=tests, signs=contradictions(row, evidence, claimed))


def _status(test: str, statuses: swebench.StatusMap, eval_type: str) -> str | None:
    key = swebench.resolve_case(test, statuses)
    if key is None:
        return "PASSED" if eval_type == swebench.FAIL_ONLY else None
    return statuses[key]
