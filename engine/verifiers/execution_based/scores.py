"""Scores of candidates: passes of regression and reproduction tests, keyed by trajectory."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import SandboxError
from engine.patches.sections import submission_hash
from engine.types import TaskRow
from engine.verifiers.execution_based.regression import RegressionSuite
from engine.verifiers.execution_based.reports import RunStatus
from engine.verifiers.execution_based.reproduction import Examination
from engine.verifiers.execution_based.runs import TestRuns, TestSelection


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidatePatch:
    """A finished trajectory's patch."""

    trajectory_id: str
    patch: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TestScore:
    """Passes of one set of tests under a candidate's patch."""

    __test__ = False
    status: RunStatus
    passed: tuple[str, ...]
    """Node ids of the tests that passed."""
    total: int
    """Number of tests that count."""
    detail: str = ""
    log: str = ""
    """End of the tests' output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateScore:
    """Execution-based score of a candidate."""

    trajectory_id: str
    patch_hash: str
    """Hash of the patch; empty for an empty patch."""
    regression: TestScore | None
    """None if infrastructure failed, with the reason in ``error``: a missing score, never 0."""
    reproduction: tuple[TestScore, ...]
    """One for each kept reproduction test, in their order; empty if infrastructure failed."""
    error: str = ""

    @property
    def regression_passes(self) -> int | None:
        """Return the number of regression tests that passed; None if infrastructure failed."""
        return None if self.regression is None else len(self.regression.passed)

    @property
    def reproduction_passes(self) -> int | None:
        """Return the number of passed reproduction tests over all files; None if infrastructure failed."""
        return None if self.error else sum(len(score.passed) for score in self.reproduction)


async def score_candidates(
    runs: TestRuns,
    row: TaskRow,
    candidates: Sequence[CandidatePatch],
    *,
    suite: RegressionSuite,
    tests: Sequence[Examination] = (),
) -> dict[str, CandidateScore]:
    """Run every candidate of a task on the same tests, each run in a fresh sandbox.

    Args:
        suite: regression tests for all of the candidates.
        tests: examined reproduction tests; those that were not kept are ignored.

    Returns:
        Trajectory id → score. An infrastructure failure affects its own candidate only.

    Raises:
        ValueError: two candidates have the same trajectory id.
    """
    if doubled := [name for name, count in Counter(c.trajectory_id for c in candidates).items() if count > 1]:
        raise ValueError(f"trajectory {doubled[0]} is given twice; a score belongs to one candidate")
    kept = [test for test in tests if test.kept]
    scores = await asyncio.gather(*(_scored(runs, row, candidate, suite, kept) for candidate in candidates))
    return {score.trajectory_id: score for score in scores}


async def _scored(
    runs: TestRuns,
    row: TaskRow,
    candidate: CandidatePatch,
    suite: RegressionSuite,
    kept: Sequence[Examination],
) -> CandidateScore:
    name, digest = candidate.trajectory_id, submission_hash(candidate.patch)
    try:
        regression = await _test_score(
            runs, row, candidate.patch, suite.selection, suite.tests, unchanged=True
        )
        reproduction = [
            await _test_score(runs, row, candidate.patch, test.test.selection, test.failing, unchanged=False)
            for test in kept
        ]
    except SandboxError as error:
        problem = str(error) or type(error).__name__
        return CandidateScore(
            trajectory_id=name, patch_hash=digest, regression=None, reproduction=(), error=problem
        )
    return CandidateScore(
        trajectory_id=name, patch_hash=digest, regression=regression, reproduction=tuple(reproduction)
    )


async def _test_score(
    runs: TestRuns,
    row: TaskRow,
    patch: str,
    selection: TestSelection,
    tests: Sequence[str],
    *,
    unchanged: bool,
) -> TestScore:
    """Run a selection under a patch.

    Args:
        tests: node ids that count.
        unchanged: whether they pass on the untouched tree, and so under a patch that changes nothing.
    """
    if not tests:
        return TestScore(status=RunStatus.RAN, passed=(), total=0)
    report = await runs.report(row, patch, selection)
    same = report.status is RunStatus.NO_CHANGE
    passed = tuple(tests if unchanged else ()) if same else report.passed(tests)
    return TestScore(
        status=report.status, passed=passed, total=len(tests), detail=report.detail, log=report.log
    )
