"""What one run of the tests left behind: everything a grade rule may look at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from engine.datasets.testing import testrun
from engine.datasets.testing.testrun import Record, TestCase, TestRun
from engine.grading import swebench
from engine.grading.parsers import parse_log
from engine.types import TaskAnswer, TaskRow, TestKind, TestOutcome, TestResult

_PASSING = frozenset({"PASSED", "XFAIL", "XPASS"})
_SUMMARY = "=== short test summary info ==="
SEVERITY = tuple(outcome.upper() for outcome in testrun.SEVERITY)
"""Outcomes in a record, the worst last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Log, exit code and reports of one run of the tests."""

    log: str = ""
    """All that was printed, with the constant markers around the tests, as the official harness stores it."""
    judged: str = ""
    """The part of ``log`` that verdicts come from: what was printed between the markers, and these."""
    shown: str = ""
    """The same without markers."""
    exit_code: int | None = None
    """Of the tests where the script has markers, else of the script."""
    seconds: float = 0.0
    timed_out: bool = False
    problem: str = ""
    """Why there are no outcomes; empty when there may be some."""
    forged: bool = False
    """Something claims to be the grader's and is not."""
    signed: TestRun | None = None
    """The driver's signed report, where the command is the driver's."""
    record_wanted: bool = False
    """The command runs pytest, so that a sealed record must be there."""
    record: Record | None = None
    cases: Mapping[tuple[str, str], TestCase] = field(default_factory=dict)
    """Of the JUnit report that the script was told to write."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Of the verifier's reward file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What a rule made of the evidence."""

    passed: bool
    tests: tuple[TestResult, ...] = ()
    detail: str = ""
    """What is wrong, for people; empty when it passed."""
    tampered: bool = False
    """The sources contradict each other in the patch's favour."""
    reward: float | None = None
    """Where a rule gives more than passed or not."""


def instance_of(row: TaskRow) -> swebench.Instance:
    """Return what log parsers may choose by."""
    task = row.task
    return swebench.Instance(
        instance_id=task.instance_id, repo=task.repo, version=str(task.metadata.get("version") or "")
    )


def statuses_of(row: TaskRow, log: str, parser: str = "") -> dict[str, str]:
    """Return statuses by test name, by the row's own parser or another."""
    return parse_log(parser or row.answer.log_parser, log, instance_of(row))


def contradictions(row: TaskRow, evidence: Evidence, claimed: Iterable[str], parser: str = "") -> list[str]:
    """Return tests that the log claims to have passed and pytest's sealed record does not know as passed.

    Args:
        parser: how the log names tests, where the row does not say; the record is read through the same eyes.
        claimed: names of tests that passed as the log has it.
    """
    if not evidence.record_wanted:
        return []
    outcomes = evidence.record.outcomes if evidence.record is not None else {}
    parser = parser or row.answer.log_parser
    known = statuses_of(row, _as_log(outcomes, parser), parser) if outcomes else {}
    wrong = []
    for test in claimed:
        key = swebench.resolve_case(test, known)
        if key is None or known[key] not in _PASSING:
            wrong.append(test)
    return wrong


def _as_log(outcomes: Mapping[str, str], parser: str) -> str:
    """Render a record as the log of an honest run; the worst of several outcomes comes last."""
    ordered = sorted(outcomes.items(), key=lambda pair: SEVERITY.index(pair[1]))
    printed = [(name, "PASSED" if outcome == "XPASS" else outcome) for name, outcome in ordered]
    if parser == "swesmith_pytest":
        return "\n".join(f"{name} {outcome}" for name, outcome in printed)
    return "\n".join([_SUMMARY, *(f"{outcome} {name}" for name, outcome in printed)])


def against_the_record(tests: list[str]) -> Judgement:
    """Return the judgement when the log says more than pytest saw."""
    return Judgement(
        passed=False, tampered=True, detail=f"pytest's own record does not confirm {named(tests)}"
    )


def unconfirmed_success(evidence: Evidence) -> str:
    """Return why a success without test names is not believed; empty when it is, or when no record is due."""
    if not evidence.record_wanted:
        return ""
    if evidence.record is None:
        return "the script succeeded, but pytest did not come to its end"
    outcomes = evidence.record.outcomes.values()
    if not any(outcome in _PASSING for outcome in outcomes):
        return "the script succeeded, but no test passed"
    if any(outcome in ("FAILED", "ERROR") for outcome in outcomes):
        return "the script succeeded, but tests failed"
    return ""


def required(answer: TaskAnswer) -> list[tuple[str, TestKind]]:
    """Return every required test and why it counts."""
    tests = [(test, TestKind.FAIL_TO_PASS) for test in answer.fail_to_pass]
    return tests + [(test, TestKind.PASS_TO_PASS) for test in answer.pass_to_pass]


def outcome_of(status: str | None) -> TestOutcome:
    """Return a parser's word as an outcome; ``missing`` for none."""
    return TestOutcome(status.lower()) if status else TestOutcome.MISSING


def named(tests: Iterable[str], limit: int = 3) -> str:
    """Return the first few and how many more."""
    tests = list(tests)
    more = f" and {len(tests) - limit} more" if len(tests) > limit else ""
    return ", ".join(tests[:limit]) + more


def describe(wrong: Mapping[str, TestOutcome | str]) -> str:
    """Return tests with their outcomes, the first few."""
    return named(f"{test} {outcome}" for test, outcome in wrong.items())
