"""Rule: Multi-SWE's transitions over three runs (no patches, test patch, test patch and fix).

The first two are stored in the row; the third is the graded run. As published (``Report`` of multi_swe_bench
1.1): no test changes from PASS to FAIL, some test changes to PASS, no test that passed without patches fails
after being absent or skipped, and every expected transition occurs.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.config.rollout import GradingConfig
from engine.grading.evidence import (
    Evidence,
    Judgement,
    contradictions,
    describe,
    first_names,
    outcome_of,
    required,
    statuses_of,
)
from engine.types import TaskAnswer, TaskRow, TestResult

PASS, FAIL, SKIP, NONE = "PASS", "FAIL", "SKIP", "NONE"
STATES = {"PASSED": PASS, "XFAIL": PASS, "FAILED": FAIL, "ERROR": FAIL, "SKIPPED": SKIP}
"""Status of a log parser → state."""
EXPECTED_BEFORE = {"p2p_tests": PASS, "f2p_tests": FAIL, "s2p_tests": SKIP, "n2p_tests": NONE}
"""Kind of transition to PASS → state before."""


def judge(row: TaskRow, evidence: Evidence, config: GradingConfig) -> Judgement:  # noqa: ARG001
    """Apply the rule described in the module's docstring."""
    answer = row.answer
    statuses = statuses_of(row, evidence.shown)
    fix = {test: STATES[status] for test, status in statuses.items()}
    tests = tuple(
        TestResult(test_id=test, kind=kind, outcome=outcome_of(statuses.get(test)))
        for test, kind in required(answer)
    )
    run, test_run = (_states(answer, name) for name in ("run_result", "test_patch_result"))
    expected = {kind: list(answer.metadata.get(kind) or ()) for kind in EXPECTED_BEFORE}
    if problem := problem_of(run, test_run, fix, expected):
        return Judgement(passed=False, tests=tests, detail=problem)
    claimed = [test for test, _ in required(answer) if fix.get(test) == PASS]
    return Judgement(passed=True, tests=tests, signs=contradictions(row, evidence, claimed))


def _states(answer: TaskAnswer, name: str) -> dict[str, str]:
    return {str(test): str(state) for test, state in dict(answer.metadata.get(name) or {}).items()}


def problem_of(
    run: Mapping[str, str],
    test: Mapping[str, str],
    fix: Mapping[str, str],
    expected: Mapping[str, list[str]],
) -> str:
    """Return the contradictions between the three runs' test states; empty when the fix is valid.

    Args:
        run: states without patches.
        test: states with the test patch.
        fix: states with test patch and fix.
        expected: ``p2p_tests``, ``f2p_tests``, ``s2p_tests``, ``n2p_tests`` of the published fix.
    """
    if not fix:
        return "the log names no test"
    every = {*run, *test, *fix}
    broken = [name for name in every if (test.get(name, NONE), fix.get(name, NONE)) == (PASS, FAIL)]
    if broken:
        return describe(dict.fromkeys(sorted(broken), "broken"))
    if not any(state == PASS and test.get(name, NONE) != PASS for name, state in fix.items()):
        return "no test changed to PASS"
    regressed = [
        name
        for name in every
        if (run.get(name, NONE), fix.get(name, NONE)) == (PASS, FAIL) and test.get(name, NONE) in (NONE, SKIP)
    ]
    if regressed:
        return describe(dict.fromkeys(sorted(regressed), "failed, passed without patches"))
    missing = [
        name
        for kind, before in EXPECTED_BEFORE.items()
        for name in expected.get(kind, ())
        if (test.get(name, NONE), fix.get(name, NONE)) != (before, PASS)
    ]
    return f"expected to pass: {first_names(missing)}" if missing else ""
