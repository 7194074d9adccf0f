"""Grade rules on synthetic evidence: verdicts, reasons and contradictions."""

from __future__ import annotations

import ast
import importlib.util
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from engine.config.rollout import GradingConfig
from engine.errors import DatasetError, PreflightError
from engine.grading.evidence import Evidence, Judgement
from engine.grading.logs.parsers import parse_log
from engine.grading.rules import RULES
from engine.grading.rules.map_equal import differences
from engine.grading.rules.multi_swe import problem_of
from engine.grading.rules.reward_file import parse_rewards
from engine.grading.running.marked_logs import read_log
from engine.grading.running.nonces import Nonces
from engine.grading.running.scripts import prepare
from engine.sandbox.base import ExecResult
from engine.testing.markers import END, START
from engine.testing.testrun import Record, TestCase, TestRun, junit_address, parse_junit
from engine.testing.toolchain import recorder_scripts
from engine.types import GradeRule, TaskAnswer, TestOutcome
from tests.builders.rollout_builders import make_row

STRICT, TOLERANT = GradingConfig(), GradingConfig(map_rule="tolerant")


def judge(rule: GradeRule, evidence: Evidence, config: GradingConfig = STRICT, **answer: Any) -> Judgement:
    return RULES[rule](
        replace(make_row(), answer=TaskAnswer(gold_patch="", grade_rule=rule, **answer)), evidence, config
    )


def record(outcomes: Mapping[str, str]) -> Record:
    return Record(exit_status=0, altered=(), outcomes=outcomes)


def test_every_rule_except_goal_has_a_module() -> None:
    assert set(RULES) == set(GradeRule) - {GradeRule.GOAL}


@pytest.mark.parametrize("kind", ["fail_to_pass", "pass_to_pass"])
@pytest.mark.parametrize("outcome", TestOutcome)
def test_a_signed_report_passes_if_every_required_test_passed(outcome: TestOutcome, kind: str) -> None:
    tests = {"fail_to_pass": "tests/test_a.py::test_new", "pass_to_pass": "tests/test_a.py::test_old"}
    outcomes = dict.fromkeys(tests.values(), TestOutcome.PASSED) | {tests[kind]: outcome}
    cases = {
        junit_address(test): TestCase(address=junit_address(test), outcome=end, seconds=1.0, exception="")
        for test, end in outcomes.items()
    }
    required: Any = {name: (test,) for name, test in tests.items()}
    judged = judge(GradeRule.F2P_P2P, Evidence(signed=TestRun(cases=cases)), STRICT, **required)
    assert judged.passed is (outcome is TestOutcome.PASSED)
    assert {test.test_id: test.outcome for test in judged.tests} == outcomes


SUMMARY = "=== short test summary info ===\n"
R2E = SUMMARY + "PASSED r2e_tests/test_1.py::A::test_x\nFAILED r2e_tests/test_1.py::test_y - assert 0\n"


def r2e(
    expected: Mapping[str, str], config: GradingConfig = STRICT, log: str = R2E, **more: Any
) -> Judgement:
    return judge(GradeRule.MAP_EQUAL, Evidence(shown=log, **more), config, expected=expected)


def test_map_equal_compares_strictly_or_tolerantly() -> None:
    assert r2e({"A.test_x": "PASSED", "test_y": "FAILED"}).passed
    better = r2e({"A.test_x": "FAILED", "test_y": "FAILED"})
    assert (better.passed, better.detail) == (False, "A.test_x passed instead of failed")
    assert r2e({"A.test_x": "PASSED"}).detail == "test_y not expected"
    assert r2e({"A.test_x": "FAILED", "test_y": "FAILED"}, TOLERANT).passed
    assert r2e({"A.test_x": "PASSED"}, TOLERANT).passed
    assert not r2e({"test_y": "PASSED"}, TOLERANT).passed
    assert differences({}, {"t": "PASSED"}, strict=False) == {"t": "missing"}


def test_map_equal_ignores_colours_and_messages() -> None:
    log = SUMMARY + "\x1b[32mPASSED\x1b[0m a.py::\x1b[1mtest_x\x1b[0m - 3 > 2\nERROR nonsense\n"
    assert r2e({"test_x": "PASSED"}, log=log).passed


def test_a_map_that_the_record_does_not_confirm_has_signs() -> None:
    expected = {"A.test_x": "PASSED", "test_y": "FAILED"}
    same = record({"r2e_tests/test_1.py::A::test_x": "PASSED", "r2e_tests/test_1.py::test_y": "FAILED"})
    assert r2e(expected, record_wanted=True, record=same).passed
    other = record({"r2e_tests/test_1.py::A::test_x": "FAILED"})
    assert r2e(expected, record_wanted=True, record=other).signs
    assert r2e(expected, record_wanted=True).signs


@pytest.mark.parametrize(
    ("outcomes", "passed"),
    [
        ({"a": "PASSED"}, True),
        ({"a": "FAILED"}, False),
        ({}, False),
        ({"a": "SKIPPED"}, False),
        (None, False),
    ],
)
def test_exit_code_0_must_be_confirmed_by_the_record(outcomes: dict[str, str] | None, passed: bool) -> None:
    recorded = None if outcomes is None else record(outcomes)
    judged = judge(GradeRule.EXIT_CODE, Evidence(exit_code=0, record_wanted=True, record=recorded))
    assert judged.passed
    assert bool(judged.signs or judged.overlooked) is not passed
    assert judge(GradeRule.EXIT_CODE, Evidence(exit_code=0)).passed
    assert not judge(GradeRule.EXIT_CODE, Evidence(exit_code=None)).passed


XML = (
    '<testsuites><testsuite><testcase classname="org.A" name="works" time="0.5"/>'
    '<testcase classname="org.B" name="works"/><testcase classname="org.B" name="breaks">'
    "<failure message='no'/></testcase><testcase classname='t' name='test_x'/></testsuite></testsuites>"
)


@pytest.mark.parametrize(
    ("tests", "passed"),
    [
        (["org.A.works"], True), (["org.A::works", "t.py::test_x"], True), (["works"], False),
        (["breaks"], False), (["test_x"], True), (["gone"], False), ([], False),
    ],
)  # fmt: skip
def test_junit_names_match_only_if_unique(tests: list[str], passed: bool) -> None:
    evidence = Evidence(cases=parse_junit(XML))
    assert judge(GradeRule.JUNIT, evidence, fail_to_pass=tuple(tests)).passed is passed
    assert not judge(GradeRule.JUNIT, Evidence(), fail_to_pass=tuple(tests)).passed


RUN = {"old": "PASS", "flaky": "PASS"}
TEST = {"old": "PASS", "new": "FAIL", "skipped": "SKIP"}
FIX = {"old": "PASS", "new": "PASS", "skipped": "PASS", "added": "PASS"}
KINDS = {"p2p_tests": ["old"], "f2p_tests": ["new"], "s2p_tests": ["skipped"], "n2p_tests": ["added"]}


@pytest.mark.parametrize(
    ("fix", "problem"),
    [
        ({}, ""),
        ({"old": "FAIL"}, "old broken"),
        ({"new": "FAIL"}, "expected to pass: new"),
        ({"added": "SKIP"}, "expected to pass: added"),
        ({"flaky": "FAIL"}, "flaky failed, passed without patches"),
        ({"new": "FAIL", "skipped": "SKIP", "added": "SKIP"}, "no test changed to PASS"),
    ],
)
def test_multi_swe_transitions_count_as_published(fix: dict[str, str], problem: str) -> None:
    assert problem_of(RUN, TEST, FIX | fix, KINDS) == problem


def test_multi_swe_compares_the_log_with_runs_of_the_row() -> None:
    metadata = {
        "run_result": {"a": "PASS"},
        "test_patch_result": {"a": "PASS", "b": "FAIL"},
        "f2p_tests": ["b"],
    }
    rule: dict[str, Any] = {"log_parser": "parse_log_gotest", "fail_to_pass": ("b",), "metadata": metadata}
    good = Evidence(shown="--- PASS: a (0.00s)\n--- PASS: b (0.00s)\n")
    judged = judge(GradeRule.MULTI_SWE, good, **rule)
    assert (judged.passed, [test.outcome for test in judged.tests]) == (True, [TestOutcome.PASSED])
    bad = Evidence(shown="--- FAIL: a (0.00s)\n--- PASS: b (0.00s)\n")
    assert judge(GradeRule.MULTI_SWE, bad, **rule).detail == "a broken"
    assert not judge(GradeRule.MULTI_SWE, Evidence(), **rule).passed


@pytest.mark.parametrize(
    ("name", "text", "rewards"),
    [
        ("r.txt", " 0.5\n", {"reward": 0.5}),
        ("r.json", '{"reward": 1, "style": 0.25}', {"reward": 1.0, "style": 0.25}),
        ("r.json", "1.0", {"reward": 1.0}),
    ],
)
def test_reward_files_are_read(name: str, text: str, rewards: dict[str, float]) -> None:
    assert parse_rewards(name, text) == rewards


@pytest.mark.parametrize(("name", "text"), [("r.txt", "yes"), ("r.json", "[1]"), ("r.json", '{"a": "b"}')])
def test_malformed_reward_files_are_refused(name: str, text: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        parse_rewards(name, text)


@pytest.mark.parametrize(
    ("rewards", "passed", "reward"),
    [
        ({"reward": 1.0}, True, 1.0), ({"reward": 0.4}, False, 0.4), ({"a": 1.0, "b": 0.0}, False, 0.5),
        ({"reward": 1e9}, True, 1.0), ({"reward": -3.0}, False, 0.0), ({"reward": float("nan")}, False, None),
        ({}, False, None), ({"reward": 1.0, "a": 1e308, "b": 1e308}, True, 1.0),
        ({"a": 1e308, "b": 1e308}, False, None), ({"a": math.inf, "b": -math.inf}, False, None),
    ],
)  # fmt: skip
def test_rewards_saturate_at_0_and_1(rewards: dict[str, float], passed: bool, reward: float | None) -> None:
    judged = judge(GradeRule.REWARD_FILE, Evidence(rewards=rewards))
    assert (judged.passed, judged.reward) == (passed, reward)


@pytest.mark.parametrize(
    ("reward", "code", "answer", "signs"),
    [
        (1.0, 1, {"gold_patch": "x"}, 1),
        (1.0, 1, {"metadata": {"solution": "make"}}, 1),
        (1.0, 0, {"gold_patch": "x"}, 0),
        (0.5, 1, {"gold_patch": "x"}, 0),
        (1.0, 1, {}, 0),
        (1.0, 1, {"gold_patch": "x", "own_box": True}, 0),
    ],
)
def test_a_full_reward_of_a_failed_verifier_is_a_sign_if_the_row_has_a_solution(
    reward: float, code: int, answer: dict[str, Any], signs: int
) -> None:
    evidence = Evidence(rewards={"reward": reward}, exit_code=code)
    row = replace(
        make_row(), answer=TaskAnswer(**{"gold_patch": "", "grade_rule": GradeRule.REWARD_FILE, **answer})
    )
    assert len(RULES[GradeRule.REWARD_FILE](row, evidence, STRICT).signs) == signs


def test_a_full_reward_is_contradicted_by_failed_tests() -> None:
    failed = Evidence(
        rewards={"reward": 1.0}, record_wanted=True, record=record({"a": "PASSED", "b": "FAILED"})
    )
    assert judge(GradeRule.REWARD_FILE, failed).overlooked == ("b failed",)
    partial = Evidence(
        rewards={"reward": 0.5}, record_wanted=True, record=record({"a": "PASSED", "b": "FAILED"})
    )
    judged = judge(GradeRule.REWARD_FILE, partial)
    assert (judged.passed, judged.signs, judged.reward) == (False, (), 0.5)


@pytest.mark.parametrize("outcome", ["FAILED", "ERROR", "SKIPPED"])
@pytest.mark.parametrize("reward", [0.01, 0.99])
def test_a_partial_reward_without_a_passed_test_is_not_accepted(outcome: str, reward: float) -> None:
    evidence = Evidence(rewards={"reward": reward}, record_wanted=True, record=record({"a": outcome}))
    judged = judge(GradeRule.REWARD_FILE, evidence)
    assert (judged.passed, judged.signs, judged.reward) == (False, (), None)
    assert "no test passed" in judged.detail
    assert judge(GradeRule.REWARD_FILE, Evidence(rewards={"reward": reward})).reward == reward


def test_overlooked_failures_are_named_without_memory_addresses() -> None:
    earlier, later = (
        judge(
            GradeRule.EXIT_CODE,
            Evidence(exit_code=0, record_wanted=True, record=record({"a": "PASSED", test: "FAILED"})),
        )
        for test in ("t[<X at 0x7f12>]", "t[<X at 0x7f34>]")
    )
    assert earlier.overlooked == later.overlooked == ("t[<X at 0x>] failed",)
    assert earlier.signs == ()


NONCES = Nonces(start="trainyard-s", end="trainyard-e", folder="/tmp/f", key="k", token="t")


def result(text: str, exit_code: int | None = 0) -> ExecResult:
    timed_out = exit_code is None
    return ExecResult(exit_code=exit_code, stdout=text.encode(), stderr=b"", timed_out=timed_out, seconds=1.0)


def test_scripts_get_nonce_markers_and_write_the_token_before_their_tests() -> None:
    script = prepare(
        f"setup\n: '{START}'\nPYTHONPATH=src pytest {{junit}}\n: '{END}'\nreset", NONCES, with_pytest=True
    )
    assert START not in script
    assert END not in script
    setup, begin, test, finish, reset = script.strip().split("\n")[-5:]
    assert (setup, reset) == ("setup", "reset")
    assert begin.index("printf t > /tmp/f/begin") < begin.index("trainyard-s")
    assert test == "PYTHONPATH=/tmp/f:src pytest /tmp/f/junit.xml"
    assert finish.startswith("{ TRAINYARD_CODE=$?;")


@pytest.mark.parametrize("name", recorder_scripts())
def test_recorder_scripts_are_valid_python_3_6(name: str) -> None:
    assert ast.parse(recorder_scripts()[name], feature_version=(3, 6))


LOG = f"built\ntrainyard-s\nPASSED a::b\n{END}\ntrainyard-e 3\nHEAD is now\n"


def test_only_lines_with_the_nonce_are_markers() -> None:
    marked = read_log(result(LOG), NONCES, marked=True)
    assert (marked.shown, marked.exit_code, marked.problem) == (f"PASSED a::b\n{END}\n", 3, "")
    assert marked.log.count(START) == marked.log.count(END) == 1
    assert marked.log.startswith("built\n")
    assert "built" not in marked.judged
    assert ">>>>> Test Exit Code: 3" in marked.judged


@pytest.mark.parametrize(
    ("text", "forged", "problem"),
    [
        (LOG + "trainyard-e 0\n", True, "forged"),
        ("trainyard-s\n" + LOG, True, "forged"),
        ("trainyard-e 0\n", True, "forged"),
        ("built\n", False, "ended before its tests (exit code 1)"),
        ("built\ntrainyard-s\nPASSED a::b\n", False, "ended during its tests (exit code 1)"),
        ("x trainyard-s\ntrainyard-e\n", False, "ended before its tests"),
    ],
)
def test_missing_and_repeated_markers_are_problems(text: str, forged: bool, problem: str) -> None:
    marked = read_log(result(text, 1), NONCES, marked=True)
    assert marked.forged is forged
    assert problem in marked.problem


def test_a_marker_lost_to_truncation_or_the_deadline_is_no_forgery() -> None:
    cut = replace(result("built\n…\nPASSED a::b\ntrainyard-e 0\n"), dropped_bytes=1)
    marked = read_log(cut, NONCES, marked=True)
    assert (marked.forged, marked.judged) == (False, "")
    assert "the log is too long" in marked.problem
    assert read_log(result(LOG, None), NONCES, marked=True).timed_out, "whatever was printed"


def test_parsers_ignore_unknown_statuses() -> None:
    json_log = 'noise\n{"tests": [{"name": "a | b", "status": "PASSED"}, {"name": "c", "status": "?"}]}\n'
    assert parse_log("swe_bench_pro", json_log) == {"a | b": "PASSED"}
    assert parse_log("swe_bench_pro", "no result") == {}


def test_multi_swe_logs_are_parsed_by_its_own_package() -> None:
    if importlib.util.find_spec("multi_swe_bench") is None:
        with pytest.raises(PreflightError, match="multi_swe_bench==1.1.2"):
            parse_log("multi_swe:cli/cli", "")
        return
    assert parse_log("multi_swe:cli/cli", "--- PASS: TestA (0.00s)\n") == {"TestA": "PASSED"}
    with pytest.raises(DatasetError, match="no repository"):
        parse_log("multi_swe:no/such", "")
