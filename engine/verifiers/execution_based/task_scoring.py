"""Scoring of one task's candidates: find regression tests, examine reproduction tests, run both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from engine.config.learning.verifier import TestLimits
from engine.errors import DatasetError, SandboxError, describe_error
from engine.types import TaskRow
from engine.verifiers.execution_based.regression import RegressionSuite, find_regression_tests
from engine.verifiers.execution_based.reports import RunStatus
from engine.verifiers.execution_based.reproduction import Examination, ReproductionTest, examine
from engine.verifiers.execution_based.runs import TestRuns
from engine.verifiers.execution_based.scores import CandidatePatch, CandidateScore, score_candidates
from engine.verifiers.execution_based.toxicity import TestQuality, quality_of_tests

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWork:
    """The candidates of one task and the tests that were written for it."""

    row: TaskRow
    candidates: Sequence[CandidatePatch]
    tests: Sequence[ReproductionTest] | None
    """None scores by regression tests alone."""
    resolved: Mapping[str, bool]
    """Trajectory id → whether it resolves the task; only graded trajectories."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCounts:
    """Stored passes of one candidate; a count that was not computed is None, never 0."""

    patch_hash: str = ""
    regression_passes: int | None = None
    regression_tests: int | None = None
    regression_status: str = ""
    """Status of the regression tests (``RunStatus``)."""
    reproduction_passes: int | None = None
    reproduction_tests: int | None = None
    detail: str = ""
    """Unfinished runs of tests, with reasons."""
    error: str = ""
    """Reason for a missing score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedTest:
    """A reproduction test, and its quality over graded candidates; None if it is not kept."""

    examination: Examination
    quality: TestQuality | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScores:
    """Scores of one task's candidates."""

    counts: Mapping[str, PassCounts]
    """By trajectory id."""
    tests: tuple[JudgedTest, ...] = ()


def distinct(tests: Iterable[ReproductionTest]) -> tuple[ReproductionTest, ...]:
    """Return the tests with distinct contents; of equal tests the first author's."""
    by_digest: dict[str, ReproductionTest] = {}
    for test in tests:
        by_digest.setdefault(test.digest, test)
    return tuple(by_digest.values())


async def score_task(runs: TestRuns, work: TaskWork, limits: TestLimits) -> TaskScores:
    """Score the candidates of one task; a failure affects scores of this task only."""
    try:
        return await _score(runs, work, limits)
    except SandboxError as error:
        problem = str(error) or type(error).__name__
    except Exception as error:
        _log.exception("task_not_scored", task=work.row.task.instance_id)
        problem = describe_error(error)
    return TaskScores(
        counts={candidate.trajectory_id: PassCounts(error=problem) for candidate in work.candidates}
    )


async def _score(runs: TestRuns, work: TaskWork, limits: TestLimits) -> TaskScores:
    suite, problem = RegressionSuite(), ""
    try:
        suite = await find_regression_tests(
            runs,
            work.row,
            [candidate.patch for candidate in work.candidates],
            max_files=limits.max_test_files,
            repeats=limits.repeats,
        )
    except (DatasetError, SandboxError) as error:
        problem = str(error) or type(error).__name__
    examined = [await examine(runs, work.row, test) for test in work.tests or ()]
    scores = await score_candidates(runs, work.row, work.candidates, suite=suite, tests=examined)
    return TaskScores(
        counts={name: _counts(work, score, problem) for name, score in scores.items()},
        tests=_judged(work, scores, examined),
    )


def _counts(work: TaskWork, score: CandidateScore, problem: str) -> PassCounts:
    regression = score.regression if not problem else None
    has_tests = work.tests is not None and not score.error
    written = (("reproduction test", result) for result in score.reproduction)
    results = [("regression tests", regression), *written]
    details = (
        f"{name}: {result.detail or result.status}"
        for name, result in results
        if result is not None and result.status is not RunStatus.RAN
    )
    return PassCounts(
        patch_hash=score.patch_hash,
        regression_passes=None if regression is None else len(regression.passed),
        regression_tests=None if regression is None else regression.total,
        regression_status="" if regression is None else regression.status,
        reproduction_passes=score.reproduction_passes if has_tests else None,
        reproduction_tests=sum(result.total for result in score.reproduction) if has_tests else None,
        detail="; ".join(dict.fromkeys(details)),
        error=score.error or problem,
    )


def _judged(
    work: TaskWork, scores: Mapping[str, CandidateScore], examined: Sequence[Examination]
) -> tuple[JudgedTest, ...]:
    """Return the reproduction tests with their quality over graded candidates."""
    graded = {name: score for name, score in scores.items() if name in work.resolved}
    qualities = iter(quality_of_tests(graded, examined, work.resolved))
    return tuple(
        JudgedTest(examination=test, quality=next(qualities) if test.kept else None) for test in examined
    )
