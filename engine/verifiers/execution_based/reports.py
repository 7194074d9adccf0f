"""Reports of test runs: a status, and the outcome of every reported test."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from engine.grading.evidence import Evidence, first_names
from engine.types import TestOutcome

_LOG_CHARS = 4000


class RunStatus(StrEnum):
    """Final status of a test run."""

    RAN = "ran"
    """The tests finished; some may have failed."""
    NO_CHANGE = "no_change"
    """The patch is empty, or changes nothing but tests and their configuration: nothing was run."""
    PATCH_FAILED = "patch_failed"
    """The patch does not apply."""
    TIMED_OUT = "timed_out"
    """Tests hit the time limit; outcomes are those of the other files."""
    NO_REPORT = "no_report"
    """Tests ended without a report: a crash, an early exit, no pytest; outcomes are those of other files."""
    TAMPERED = "tampered"
    """The report or the test runner was altered while the tests ran; no outcome counts."""


_WORST_LAST = (RunStatus.RAN, RunStatus.NO_REPORT, RunStatus.TIMED_OUT, RunStatus.TAMPERED)


@dataclass(frozen=True, slots=True, kw_only=True)
class TestReport:
    """Result of one run of tests on the tree with a patch."""

    __test__ = False
    status: RunStatus
    outcomes: Mapping[str, TestOutcome] = field(default_factory=dict)
    """Node id → outcome; a file that could not be collected is listed by its path, as an error."""
    detail: str = ""
    """Reason of the status, one sentence; empty if the tests ran."""
    log: str = ""
    """End of the tests' output."""
    seconds: float = 0.0
    signs: tuple[str, ...] = ()
    """Signs of tampering that an honest project's own tests may cause as well."""
    executed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Node id → files of which the test executed lines; only for a traced run."""

    def passed(self, tests: Collection[str]) -> tuple[str, ...]:
        """Return the given tests that passed, in their order."""
        return tuple(test for test in tests if self.outcomes.get(test) is TestOutcome.PASSED)


def report_of(
    evidence: Evidence, known_signs: Collection[str] = (), printed: Mapping[str, str] | None = None
) -> TestReport:
    """Return the report of a run.

    Args:
        known_signs: signs of tampering in runs of the untouched repository.
        printed: test → status according to a parser of the log, if a runner without a recorder may have run
            the tests.
    """
    printed = None if evidence.record_wanted else printed
    status, detail = _status(evidence, known_signs, printed)
    return TestReport(
        status=status,
        outcomes={} if status is RunStatus.TAMPERED else _outcomes(evidence, printed or {}),
        detail=_storable(detail),
        log=_storable(evidence.log[-_LOG_CHARS:]),
        seconds=evidence.seconds,
        signs=tuple(map(_storable, evidence.signs)),
        executed=_executed(evidence),
    )


def not_run(status: RunStatus, detail: str) -> TestReport:
    """Return the report of a run that ended before its tests."""
    return TestReport(status=status, detail=_storable(detail))


def merged(reports: Sequence[TestReport]) -> TestReport:
    """Return one report of runs of different files; its status is the worst one's."""
    worst = max(reports, key=lambda report: _WORST_LAST.index(report.status))
    return replace(
        worst,
        outcomes={test: outcome for report in reports for test, outcome in report.outcomes.items()},
        seconds=sum(report.seconds for report in reports),
        signs=tuple(dict.fromkeys(sign for report in reports for sign in report.signs)),
        executed={test: files for report in reports for test, files in report.executed.items()},
    )


def _status(
    evidence: Evidence, known_signs: Collection[str], printed: Mapping[str, str] | None
) -> tuple[RunStatus, str]:
    if evidence.timed_out:
        return RunStatus.TIMED_OUT, evidence.problem
    if evidence.forged:
        return RunStatus.TAMPERED, evidence.problem
    if signs := [sign for sign in evidence.signs if _storable(sign) not in known_signs]:
        return RunStatus.TAMPERED, f"signs of tampering: {first_names(signs)}"
    if evidence.disk_full:
        return RunStatus.NO_REPORT, "the sandbox's disk was full when the tests ended"
    if evidence.problem:
        return RunStatus.NO_REPORT, evidence.problem
    if printed is not None:
        return (RunStatus.RAN, "") if printed else (RunStatus.NO_REPORT, "the log names no test")
    if evidence.signed is None and (evidence.record is None or evidence.record.exit_status < 0):
        return RunStatus.NO_REPORT, f"pytest did not finish (exit code {evidence.exit_code})"
    return RunStatus.RAN, ""


def _outcomes(evidence: Evidence, printed: Mapping[str, str]) -> dict[str, TestOutcome]:
    if evidence.signed is not None:
        signed = evidence.signed.outcomes(evidence.signed.ids)
        return {_storable(test): outcome for test, outcome in signed.items()}
    outcomes = evidence.record.outcomes if evidence.record is not None else printed
    return {_storable(test): TestOutcome(outcome.lower()) for test, outcome in outcomes.items()}


def _executed(evidence: Evidence) -> dict[str, tuple[str, ...]]:
    lines = evidence.signed.lines if evidence.signed is not None else {}
    return {_storable(test): tuple(map(_storable, files)) for test, files in lines.items()}


def _storable(text: str) -> str:
    """Return a text of the code under test with surrogates, which files cannot store, as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()
