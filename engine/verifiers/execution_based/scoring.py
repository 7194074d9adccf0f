"""Scoring of files of rollouts through a sandbox pool.

OUTPUT/rollouts.jsonl   one line per rollout, as ``python -m engine.verifiers.selection`` reads it
OUTPUT/tests.jsonl      one line per reproduction test: kept or why not, and how it told candidates apart
OUTPUT/reports/         reports of test runs; a killed command goes on where it was
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import structlog
from pydantic import Field

from engine.config.base import Section
from engine.config.sandbox import SandboxConfig
from engine.datasets.store import load_dataset
from engine.errors import DatasetError, SandboxError
from engine.files import atomic_write
from engine.sandbox.backends import make_backend
from engine.sandbox.pool.pool import SandboxPool
from engine.sandbox.preflight import require
from engine.types import TaskRow
from engine.verifiers.execution_based.regression import RegressionSuite, find_regression_tests
from engine.verifiers.execution_based.reproduction import Examination, ReproductionTest, examine
from engine.verifiers.execution_based.rollout_files import (
    FinishedRollout,
    read_rollouts,
    read_tests,
)
from engine.verifiers.execution_based.runs import TestRuns
from engine.verifiers.execution_based.scores import CandidateScore, score_candidates
from engine.verifiers.execution_based.store import FolderReports
from engine.verifiers.execution_based.toxicity import TestQuality, quality_of_tests

_FIRST_REJECTS = 5
_log = structlog.get_logger(__name__)


class ScoringSettings(Section):
    """Settings of scoring rollouts by execution."""

    sandbox: SandboxConfig = SandboxConfig()
    timeout_s: float = Field(default=300.0, gt=0)
    """Time limit of one run of tests, seconds."""
    max_parallel: int = Field(default=2, ge=1)
    """Maximum number of concurrent runs of tests."""
    max_test_files: int = Field(default=40, ge=1)
    """Maximum number of a repository's test files among which regression tests are looked for."""
    repeats: int = Field(default=2, ge=1)
    """Runs on the untouched repository, all of which a regression test must pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringInputs:
    """Inputs and outputs of one command."""

    dataset: str
    rollouts: Path
    tests: Path | None
    """Reproduction tests; None scores by regression tests alone."""
    output: Path
    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _TaskWork:
    """The rollouts of one task and the tests that were written for it."""

    row: TaskRow
    rollouts: Sequence[FinishedRollout]
    tests: Sequence[ReproductionTest] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _TaskResult:
    rollouts: list[dict[str, Any]]
    tests: list[dict[str, Any]]


async def score_files(home: Path, inputs: ScoringInputs, settings: ScoringSettings) -> dict[str, Any]:
    """Score every rollout of a file; return the counts.

    Args:
        home: the data folder.

    Raises:
        DatasetError: the dataset or a file is invalid.
        PreflightError: the machine lacks something.
    """
    work, rejected = await asyncio.to_thread(_work, home, inputs)
    backend = make_backend(settings.sandbox, home)
    await require(backend)
    pool = SandboxPool(backend, settings.sandbox)
    runs = TestRuns(
        backend=pool,
        sandbox=settings.sandbox,
        run_id=inputs.run_id,
        timeout_s=settings.timeout_s,
        max_parallel=settings.max_parallel,
        store=FolderReports(inputs.output / "reports"),
    )
    try:
        results = await asyncio.gather(*(_score_or_lose(runs, task, settings) for task in work))
    finally:
        await pool.close()
    rollouts = [line for result in results for line in result.rollouts]
    tests = [line for result in results for line in result.tests]
    for name, lines in (("rollouts", rollouts), ("tests", tests)):
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        await asyncio.to_thread(atomic_write, inputs.output / f"{name}.jsonl", text)
    return {
        "dataset": inputs.dataset,
        "tasks": len(work),
        "rollouts": len(rollouts),
        "without_score": sum(bool(line.get("error")) for line in rollouts),
        "tests": dict(sorted(Counter(line["rejection"] or "kept" for line in tests).items())),
        "toxic": sum(line["toxic"] for line in tests),
        "rejected": len(rejected),
        "first_rejects": rejected[:_FIRST_REJECTS],
        "output": str(inputs.output),
    }


def _work(home: Path, inputs: ScoringInputs) -> tuple[list[_TaskWork], list[str]]:
    """Return the work by task, and the reasons why lines of the files were rejected."""
    inputs.output.mkdir(parents=True, exist_ok=True)
    rows = {
        name: row
        for row in load_dataset(home, inputs.dataset).rows
        for name in (row.task.id, row.task.instance_id)
    }
    rollouts, rejected = read_rollouts(inputs.rollouts)
    by_task: dict[str, dict[str, FinishedRollout]] = {}
    for rollout in rollouts:
        name = rollout.candidate.trajectory_id
        if (row := rows.get(rollout.task)) is None:
            rejected.append(f"trajectory {name}: task {rollout.task} is not in dataset '{inputs.dataset}'")
        elif by_task.setdefault(row.task.id, {}).setdefault(name, rollout) is not rollout:
            rejected.append(f"trajectory {name} of task {rollout.task} is given twice; the first counts")
    if not by_task:
        raise DatasetError(f"{inputs.rollouts} holds no rollout of dataset '{inputs.dataset}': {rejected[0]}")
    tests: dict[str, list[ReproductionTest]] = {}
    if inputs.tests is not None:
        written, more = read_tests(inputs.tests)
        rejected += [f"{inputs.tests.name}, {reason}" for reason in more]
        for one in written:
            if (row := rows.get(one.task)) is not None:
                tests.setdefault(row.task.id, []).append(one.test)
    work = [
        _TaskWork(
            row=rows[task],
            rollouts=tuple(found.values()),
            tests=_distinct(tests.get(task, ())) if inputs.tests is not None else None,
        )
        for task, found in by_task.items()
    ]
    return work, rejected


def _distinct(tests: Iterable[ReproductionTest]) -> tuple[ReproductionTest, ...]:
    """Return the tests without repetitions of a content, the first author's kept."""
    found: dict[str, ReproductionTest] = {}
    for test in tests:
        found.setdefault(test.digest, test)
    return tuple(found.values())


async def _score_or_lose(runs: TestRuns, work: _TaskWork, settings: ScoringSettings) -> _TaskResult:
    """Score the rollouts of one task; whatever is raised costs its own task only."""
    try:
        return await _score_task(runs, work, settings)
    except Exception as error:
        _log.exception("task_not_scored", task=work.row.task.instance_id)
        problem = f"{type(error).__name__}: {error}"
        return _TaskResult(rollouts=[_lost(work, rollout, problem) for rollout in work.rollouts], tests=[])


async def _score_task(runs: TestRuns, work: _TaskWork, settings: ScoringSettings) -> _TaskResult:
    """Score the rollouts of one task; what fails costs scores of this task only."""
    patches = [rollout.candidate for rollout in work.rollouts]
    suite, problem = RegressionSuite(), ""
    try:
        suite = await find_regression_tests(
            runs,
            work.row,
            [candidate.patch for candidate in patches],
            max_files=settings.max_test_files,
            repeats=settings.repeats,
        )
    except (DatasetError, SandboxError) as error:
        problem = str(error) or type(error).__name__
    try:
        examined = [await examine(runs, work.row, test) for test in work.tests or ()]
    except SandboxError as error:
        return _TaskResult(rollouts=[_lost(work, rollout, str(error)) for rollout in work.rollouts], tests=[])
    scores = await score_candidates(runs, work.row, patches, suite=suite, tests=examined)
    lines = [
        _line(work, rollout, scores[rollout.candidate.trajectory_id], problem) for rollout in work.rollouts
    ]
    return _TaskResult(rollouts=lines, tests=_test_lines(work, scores, examined))


def _line(work: _TaskWork, rollout: FinishedRollout, score: CandidateScore, problem: str) -> dict[str, Any]:
    """Return the line of a rollout; a score that was not computed is absent."""
    line = _lost(work, rollout, score.error or problem)
    line["patch_hash"] = score.patch_hash
    if score.regression is not None and not problem:
        line |= {
            "regression_passes": len(score.regression.passed),
            "regression_tests": score.regression.total,
            "regression_status": score.regression.status,
        }
    if work.tests is not None and not score.error:
        line |= {
            "reproduction_passes": score.reproduction_passes,
            "reproduction_tests": sum(result.total for result in score.reproduction),
        }
    return line


def _lost(work: _TaskWork, rollout: FinishedRollout, error: str) -> dict[str, Any]:
    name = rollout.candidate.trajectory_id
    line = {"task_id": work.row.task.id, "instance_id": work.row.task.instance_id, "trajectory_id": name}
    return {**line, **rollout.columns, **({"error": error} if error else {})}


def _test_lines(
    work: _TaskWork, scores: Mapping[str, CandidateScore], examined: Sequence[Examination]
) -> list[dict[str, Any]]:
    """Return a line per reproduction test; what it told apart is counted over rollouts with a verdict."""
    resolved = {
        rollout.candidate.trajectory_id: bool(rollout.columns["resolved"])
        for rollout in work.rollouts
        if "resolved" in rollout.columns
    }
    graded = {name: score for name, score in scores.items() if name in resolved}
    qualities = iter(quality_of_tests(graded, examined, resolved))
    lines = []
    for test in examined:
        quality = next(qualities) if test.kept else None
        lines.append(
            {
                "task_id": work.row.task.id,
                "author": test.test.author,
                "digest": test.test.digest,
                "rejection": test.rejection,
                "detail": test.detail,
                "failing": list(test.failing),
                **_judged(quality),
            }
        )
    return lines


def _judged(quality: TestQuality | None) -> dict[str, Any]:
    counts = {name: value for name, value in asdict(quality).items() if name != "author"} if quality else {}
    return {
        **counts,
        "toxic": quality is not None and quality.toxic,
        "misleading": quality is not None and quality.misleading,
    }
