"""Grade rules on made evidence: what passes, what fails and why, what is not believed."""

from __future__ import annotations

import ast
import importlib.util
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


def test_every_rule_but_the_environments_own_has_a_module() -> None:
    assert set(RULES) == set(GradeRule) - {GradeRule.GOAL}


@pytest.mark.parametrize("kind", ["fail_to_pass", "pass_to_pass"])
@pytest.mark.parametrize("outcome", TestOutcome)
def test_a_signed_report_passes_where_every_required_test_passed(outcome: TestOutcome, kind: str) -> None:
    tests = {"fail_to_pass": "tests/test_a.py::test_new", "pass_to_pass": "tests/test_a.py::test_old"}
    outcomes = dict.fromkeys(tests.values(), TestOutcome.PASSED) | {tests[kind]: outcome}
    cases = {
        junit_address(test): TestCase(address=junit_address(test), outcome=found, seconds=1.0, exception="")
        for test, found in outcomes.items()
    }
    required: Any = {name: (test,) for name, test in tests.items()}
    found = judge(GradeRule.F2P_P2P, Evidence(signed=TestRun(cases=cases)), STRICT, **required)
    assert found.passed is (outcome is TestOutcome.PASSED)
    assert {test.test_id: test.outcome for test in found.tests} == outcomes


SUMMARY = "=== short test summary info ===\n"
R2E = SUMMARY + "PASSED r2e_tests/test_1.py::A::test_x\nFAILED r2e_tests/test_1.py::test_y - assert 0\n"


def r2e(
    expected: Mapping[str, str], config: GradingConfig = STRICT, log: str = R2E, **more: Any
) -> Judgement:
    return judge(GradeRule.MAP_EQUAL, Evidence(shown=log, **more), config, expected=expected)


def test_maps_must_be_equal_strictly_or_tolerantly() -> None:
    assert r2e({"A.test_x": "PASSED", "test_y": "FAILED"}).passed
    better = r2e({"A.test_x": "FAILED", "test_y": "FAILED"})
    assert (better.passed, better.detail) == (False, "A.test_x passed instead of failed")
    assert r2e({"A.test_x": "PASSED"}).detail == "test_y not expected"
    assert r2e({"A.test_x": "FAILED", "test_y": "FAILED"}, TOLERANT).passed
    assert r2e({"A.test_x": "PASSED"}, TOLERANT).passed
    assert not r2e({"test_y": "PASSED"}, TOLERANT).passed
    assert differences({}, {"t": "PASSED"}, strict=False) == {"t": "missing"}


def test_colours_and_messages_do_not_count_in_maps() -> None:
    log = SUMMARY + "\x1b[32mPASSED\x1b[0m a.py::\x1b[1mtest_x\x1b[0m - 3 > 2\nERROR nonsense\n"
    assert r2e({"test_x": "PASSED"}, log=log).passed


def test_a_map_that_pytest_does_not_confirm_is_tampered() -> None:
    expected = {"A.test_x": "PASSED", "test_y": "FAILED"}
    seen = record({"r2e_tests/test_1.py::A::test_x": "PASSED", "r2e_tests/test_1.py::test_y": "FAILED"})
    assert r2e(expected, record_wanted=True, record=seen).passed
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
def test_exit_code_0_must_be_confirmed(outcomes: dict[str, str] | None, passed: bool) -> None:
    seen = None if outcomes is None else record(outcomes)
    found = judge(GradeRule.EXIT_CODE, Evidence(exit_code=0, record_wanted=True, record=seen))
    assert found.passed
    assert bool(found.signs or found.overlooked) is not passed
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
def test_junit_names_are_found_where_they_are_unique(tests: list[str], passed: bool) -> None:
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
def test_transitions_count_as_multi_swe_published_them(fix: dict[str, str], problem: str) -> None:
    assert problem_of(RUN, TEST, FIX | fix, KINDS) == problem


def test_multi_swe_reads_the_rows_runs_and_the_log() -> None:
    metadata = {
        "run_result": {"a": "PASS"},
        "test_patch_result": {"a": "PASS", "b": "FAIL"},
        "f2p_tests": ["b"],
    }
    rule: dict[str, Any] = {"log_parser": "parse_log_gotest", "fail_to_pass": ("b",), "metadata": metadata}
    good = Evidence(shown="--- PASS: a (0.00s)\n--- PASS: b (0.00s)\n")
    found = judge(GradeRule.MULTI_SWE, good, **rule)
    assert (found.passed, [test.outcome for test in found.tests]) == (True, [TestOutcome.PASSED])
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
def test_what_is_no_reward_is_refused(name: str, text: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        parse_rewards(name, text)


@pytest.mark.parametrize(
    ("rewards", "passed", "reward"),
    [
        ({"reward": 1.0}, True, 1.0), ({"reward": 0.4}, False, 0.4), ({"a": 1.0, "b": 0.0}, False, 0.5),
        ({"reward": 1e9}, True, 1.0), ({"reward": -3.0}, False, 0.0), ({"reward": float("nan")}, False, None),
        ({}, False, None),
    ],
)  # fmt: skip
def test_rewards_count_within_0_and_1(rewards: dict[str, float], passed: bool, reward: float | None) -> None:
    found = judge(GradeRule.REWARD_FILE, Evidence(rewards=rewards))
    assert (found.passed, found.reward) == (passed, reward)


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
def test_a_full_reward_of_a_verifier_that_failed_is_a_sign_where_a_solution_can_tell(
    reward: float, code: int, answer: dict[str, Any], signs: int
) -> None:
    evidence = Evidence(rewards={"reward": reward}, exit_code=code)
    row = replace(
        make_row(), answer=TaskAnswer(**{"gold_patch": "", "grade_rule": GradeRule.REWARD_FILE, **answer})
    )
    assert len(RULES[GradeRule.REWARD_FILE](row, evidence, STRICT).signs) == signs


def test_a_full_reward_over_failed_tests_is_not_believed() -> None:
    failed = Evidence(
        rewards={"reward": 1.0}, record_wanted=True, record=record({"a": "PASSED", "b": "FAILED"})
    )
    assert judge(GradeRule.REWARD_FILE, failed).overlooked == ("b failed",)
    partial = Evidence(
        rewards={"reward": 0.5}, record_wanted=True, record=record({"a": "PASSED", "b": "FAILED"})
    )
    found = judge(GradeRule.REWARD_FILE, partial)
    assert (found.passed, found.signs, found.reward) == (False, (), 0.5)


@pytest.mark.parametrize("outcome", ["FAILED", "ERROR", "SKIPPED"])
@pytest.mark.parametrize("reward", [0.01, 0.99])
def test_a_part_of_the_reward_without_a_test_that_passed_is_not_believed(outcome: str, reward: float) -> None:
    without = Evidence(rewards={"reward": reward}, record_wanted=True, record=record({"a": outcome}))
    found = judge(GradeRule.REWARD_FILE, without)
    assert (found.passed, found.signs, found.reward) == (False, (), None)
    assert "no test passed" in found.detail
    assert judge(GradeRule.REWARD_FILE, Evidence(rewards={"reward": reward})).reward == reward


def test_failed_tests_beside_a_success_are_told_apart_by_name() -> None:
    at_first, later = (
        judge(
            GradeRule.EXIT_CODE,
            Evidence(exit_code=0, record_wanted=True, record=record({"a": "PASSED", test: "FAILED"})),
        )
        for test in ("t[<X at 0x7f12>]", "t[<X at 0x7f34>]")
    )
    assert at_first.overlooked == later.overlooked == ("t[<X at 0x>] failed",)
    assert at_first.signs == ()


NONCES = Nonces(start="trainyard-s", end="trainyard-e", folder="/tmp/f", key="k", token="t")


def result(text: str, exit_code: int | None = 0) -> ExecResult:
    timed_out = exit_code is None
    return ExecResult(exit_code=exit_code, stdout=text.encode(), stderr=b"", timed_out=timed_out, seconds=1.0)


def test_the_script_gets_own_markers_and_the_token_where_its_tests_begin() -> None:
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
def test_the_recorder_runs_on_old_pythons(name: str) -> None:
    assert ast.parse(recorder_scripts()[name], feature_version=(3, 6))


LOG = f"built\ntrainyard-s\nPASSED a::b\n{END}\ntrainyard-e 3\nHEAD is now\n"


def test_only_the_lines_with_the_nonce_are_markers() -> None:
    found = read_log(result(LOG), NONCES, marked=True)
    assert (found.shown, found.exit_code, found.problem) == (f"PASSED a::b\n{END}\n", 3, "")
    assert found.log.count(START) == found.log.count(END) == 1
    assert found.log.startswith("built\n")
    assert "built" not in found.judged
    assert ">>>>> Test Exit Code: 3" in found.judged


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
def test_markers_come_exactly_once(text: str, forged: bool, problem: str) -> None:
    found = read_log(result(text, 1), NONCES, marked=True)
    assert found.forged is forged
    assert problem in found.problem


def test_a_marker_lost_with_the_middle_of_a_long_log_or_by_the_deadline_is_no_forgery() -> None:
    cut = replace(result("built\n…\nPASSED a::b\ntrainyard-e 0\n"), dropped_bytes=1)
    found = read_log(cut, NONCES, marked=True)
    assert (found.forged, found.judged) == (False, "")
    assert "the log is too long" in found.problem
    assert read_log(result(LOG, None), NONCES, marked=True).timed_out, "whatever was printed"


def test_parsers_leave_out_statuses_that_they_do_not_know() -> None:
    json_log = 'noise\n{"tests": [{"name": "a | b", "status": "PASSED"}, {"name": "c", "status": "?"}]}\n'
    assert parse_log("swe_bench_pro", json_log) == {"a | b": "PASSED"}
    assert parse_log("swe_bench_pro", "no result") == {}


def test_multi_swes_parsers_are_its_own_package() -> None:
    if importlib.util.find_spec("multi_swe_bench") is None:
        with pytest.raises(PreflightError, match="multi_swe_bench==1.1.2"):
            parse_log("multi_swe:cli/cli", "")
        return
    assert parse_log("multi_swe:cli/cli", "--- PASS: TestA (0.00s)\n") == {"TestA": "PASSED"}
    with pytest.raises(DatasetError, match="no repository"):
        parse_log("multi_swe:no/such", "")
