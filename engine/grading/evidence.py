"""Evidence of one test run: all data that a grade rule may use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from engine.grading.logs import swebench
from engine.grading.logs.parsers import parse_log
from engine.testing import testrun
from engine.testing.testrun import Record, TestCase, TestRun
from engine.types import TaskAnswer, TaskRow, TestKind, TestOutcome, TestResult

NO_RECORD = "pytest left no record of tests"
_PASSING = frozenset({"PASSED", "XFAIL", "XPASS"})
_FAILING = frozenset({"FAILED", "ERROR"})
_ADDRESS = re.compile(r"\b0x[0-9a-f]+")
"""Addresses of objects in the names of tests, which differ from run to run."""
_SUMMARY = "=== short test summary info ==="
SEVERITY = tuple(outcome.upper() for outcome in testrun.SEVERITY)
"""Outcomes in a record, in order of increasing severity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Log, exit code and reports of one run of the tests."""

    log: str = ""
    """Complete output, with the constant markers around the tests, as the official harness stores it."""
    judged: str = ""
    """Part of ``log`` on which verdicts are based: the output between the markers, markers included."""
    shown: str = ""
    """Part of ``log`` on which verdicts are based, without markers."""
    exit_code: int | None = None
    """Exit code of the tests if the script has markers, else of the script."""
    seconds: float = 0.0
    timed_out: bool = False
    problem: str = ""
    """Reason why there are no outcomes; empty when there may be some."""
    forged: bool = False
    """Output that imitates the grader's was found."""
    signs: tuple[str, ...] = ()
    """Signs of tampering that an honest project's own tests may cause as well: changes to the test runner and
    to test files while the tests ran. Signs that the gold patch's runs show as well do not count."""
    data_signs: tuple[str, ...] = ()
    """Signs that test data or constants in test files changed while the tests ran. They count only against a
    reward, and only if the row has a solution whose runs can show the same signs."""
    disk_full: bool = False
    """The sandbox's disk was full when the tests ended, so reports may be missing or truncated."""
    signed: TestRun | None = None
    """The driver's signed report, if the command runs the driver."""
    record_wanted: bool = False
    """Whether the command runs pytest, so that a sealed record is required."""
    record: Record | None = None
    record_parsed: str = ""
    """Record as the row's own parser script prints it; empty without one."""
    cases: Mapping[tuple[str, str], TestCase] = field(default_factory=dict)
    """Cases of the JUnit report that the script wrote."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Rewards in the verifier's reward file."""

    @property
    def is_incomplete(self) -> bool:
        """Return whether a report is missing, damaged or not the grader's."""
        without_record = self.record_wanted and self.record is None
        return bool(self.forged or self.signs or self.problem or without_record)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Verdict of a rule on the evidence."""

    passed: bool
    tests: tuple[TestResult, ...] = ()
    detail: str = ""
    """Description of the failure for display; empty when the patch passed."""
    signs: tuple[str, ...] = ()
    """Contradictions between sources of evidence in the patch's favour: signs of tampering like those of
    ``Evidence``, whatever ``passed`` is."""
    overlooked: tuple[str, ...] = ()
    """Tests that failed although the script succeeded (see ``overlooked``). They fail the run, unless runs of
    the gold patch show them as well."""
    reward: float | None = None
    """Reward of a rule that grades beyond passed or failed."""


def instance_of(row: TaskRow) -> swebench.Instance:
    """Return the instance fields that log parsers depend on."""
    task = row.task
    return swebench.Instance(
        instance_id=task.instance_id, repo=task.repo, version=str(task.metadata.get("version") or "")
    )


def statuses_of(row: TaskRow, log: str, parser: str = "") -> dict[str, str]:
    """Return the statuses by test name, from the row's own parser or a given one."""
    return parse_log(parser or row.answer.log_parser, log, instance_of(row))


def contradictions(
    row: TaskRow, evidence: Evidence, claimed: Sequence[str], parser: str = ""
) -> tuple[str, ...]:
    """Return a sign of tampering for each test that passed according to the log but not to pytest's record.

    Args:
        parser: parser of the log if the row names none; the record is read with the same parser.
        claimed: names of tests that passed according to the log.
    """
    if not evidence.record_wanted or not claimed:
        return ()
    outcomes = evidence.record.outcomes if evidence.record is not None else {}
    parser = parser or row.answer.log_parser
    if not outcomes:
        return (NO_RECORD,)
    known = statuses_of(row, evidence.record_parsed or _as_log(outcomes, parser), parser)
    wrong = []
    for test in claimed:
        key = swebench.resolve_case(test, known)
        if key is None or known[key] not in _PASSING:
            wrong.append(unconfirmed(test))
    return tuple(wrong)


def _as_log(outcomes: Mapping[str, str], parser: str) -> str:
    """Render a record as the log of an honest run for a parser of this installation."""
    return verbose_log(outcomes) if parser == "swesmith_pytest" else summary_log(outcomes)


def verbose_log(outcomes: Mapping[str, str]) -> str:
    """Render a record as lines of ``pytest -v``; the worst of several outcomes comes last."""
    return "".join(f"{name} {outcome} [100%]\n" for name, outcome in _printed(outcomes))


def summary_log(outcomes: Mapping[str, str]) -> str:
    """Render a record as the summary of ``pytest -rA``; the worst of several outcomes comes last."""
    lines = [f"{outcome} {name}" for name, outcome in _printed(outcomes)]
    return "\n".join([_SUMMARY, *lines]) + "\n"


def _printed(outcomes: Mapping[str, str]) -> list[tuple[str, str]]:
    ordered = sorted(outcomes.items(), key=lambda pair: SEVERITY.index(pair[1]))
    return [(name, "PASSED" if outcome == "XPASS" else outcome) for name, outcome in ordered]


def unconfirmed(test: str) -> str:
    """Return the sign of tampering for a test that passed according to a report only."""
    return f"pytest's own record does not confirm {test}"


def unconfirmed_success(evidence: Evidence) -> tuple[str, ...]:
    """Return the sign of tampering for a success without test names; empty when it is confirmed."""
    if not evidence.record_wanted:
        return ()
    if evidence.record is None or evidence.record.exit_status < 0:
        return ("the script succeeded, but its tests did not come to their end",)
    if not has_passed_tests(evidence):
        return ("the script succeeded, but no test passed",)
    return ()


def has_passed_tests(evidence: Evidence) -> bool:
    """Return whether a test passed according to pytest's sealed record."""
    return evidence.record is not None and not _PASSING.isdisjoint(evidence.record.outcomes.values())


def overlooked(evidence: Evidence) -> tuple[str, ...]:
    """Return a phrase for each test that failed although the script succeeded; none without a record.

    Scripts may ignore the exit code of pytest, and code under test may change it.
    """
    if not evidence.record_wanted or evidence.record is None:
        return ()
    outcomes = evidence.record.outcomes.items()
    failed = (_ADDRESS.sub("0x", test) for test, outcome in outcomes if outcome in _FAILING)
    return tuple(dict.fromkeys(f"{test} failed" for test in failed))


def recorded_tests(evidence: Evidence) -> tuple[TestResult, ...]:
    """Return the tests in pytest's sealed record, for rules without names of tests."""
    outcomes = evidence.record.outcomes if evidence.record is not None else {}
    return tuple(
        TestResult(test_id=test, kind=TestKind.PASS_TO_PASS, outcome=outcome_of(outcome))
        for test, outcome in outcomes.items()
    )


def required(answer: TaskAnswer) -> list[tuple[str, TestKind]]:
    """Return every required test with its kind (fail-to-pass or pass-to-pass)."""
    tests = [(test, TestKind.FAIL_TO_PASS) for test in answer.fail_to_pass]
    return tests + [(test, TestKind.PASS_TO_PASS) for test in answer.pass_to_pass]


def outcome_of(status: str | None) -> TestOutcome:
    """Return the outcome of a parser's status; ``missing`` for None."""
    return TestOutcome(status.lower()) if status else TestOutcome.MISSING


def first_names(tests: Iterable[str], limit: int = 3) -> str:
    """Return the first few names and the number of the others."""
    tests = list(tests)
    rest = f" and {len(tests) - limit} more" if len(tests) > limit else ""
    return ", ".join(tests[:limit]) + rest


def describe(wrong: Mapping[str, TestOutcome | str]) -> str:
    """Return the first few tests with their outcomes."""
    return first_names(f"{test} {outcome}" for test, outcome in wrong.items())
