"""Scoring of files of rollouts through a sandbox pool.

OUTPUT/rollouts.jsonl   one line per rollout, as ``python -m engine.verifiers.selection`` reads it
OUTPUT/tests.jsonl      one line per reproduction test: kept or rejected; passes of good and bad candidates
OUTPUT/reports/         reports of test runs; a killed command can be resumed
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.config.learning.verifier import TestLimits
from engine.config.sandbox import SandboxConfig
from engine.datasets.store import load_dataset
from engine.errors import DatasetError
from engine.files import atomic_write
from engine.sandbox.backends import make_backend
from engine.sandbox.pool.pool import SandboxPool
from engine.sandbox.preflight import require
from engine.testing.toolchain import update_toolchains
from engine.verifiers.execution_based.reproduction import ReproductionTest
from engine.verifiers.execution_based.rollout_files import (
    FinishedRollout,
    read_rollouts,
    read_tests,
)
from engine.verifiers.execution_based.runs import TestRuns
from engine.verifiers.execution_based.store import FolderReports
from engine.verifiers.execution_based.task_scoring import (
    JudgedTest,
    TaskScores,
    TaskWork,
    distinct,
    score_task,
)

_FIRST_REJECTS = 5


class ScoringSettings(TestLimits):
    """Settings of scoring rollouts by execution."""

    sandbox: SandboxConfig = SandboxConfig()


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
class _FileWork:
    """The rollouts of one task."""

    work: TaskWork
    rollouts: Sequence[FinishedRollout]


async def score_files(home: Path, inputs: ScoringInputs, settings: ScoringSettings) -> dict[str, Any]:
    """Score every rollout of a file; return the counts.

    Args:
        home: the data folder.

    Raises:
        DatasetError: the dataset or a file is invalid.
        PreflightError: the machine lacks a requirement.
    """
    work, rejected = await asyncio.to_thread(_work, home, inputs)
    await asyncio.to_thread(update_toolchains, home)
    backend = make_backend(settings.sandbox, home, run_id=inputs.run_id)
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
        results = await asyncio.gather(*(score_task(runs, task.work, settings) for task in work))
    finally:
        await pool.close()
    scored = list(zip(work, results, strict=True))
    rollouts = [_line(task.work, rollout, scores) for task, scores in scored for rollout in task.rollouts]
    tests = [_test_line(task.work, test) for task, scores in scored for test in scores.tests]
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


def _work(home: Path, inputs: ScoringInputs) -> tuple[list[_FileWork], list[str]]:
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
        written, reasons = read_tests(inputs.tests)
        rejected += [f"{inputs.tests.name}, {reason}" for reason in reasons]
        for item in written:
            if (row := rows.get(item.task)) is None:
                rejected.append(
                    f"{inputs.tests.name}, test of trajectory {item.test.author}: task {item.task} is not in "
                    f"dataset '{inputs.dataset}'"
                )
            else:
                tests.setdefault(row.task.id, []).append(item.test)
    work = [
        _FileWork(
            work=TaskWork(
                row=rows[task],
                candidates=[rollout.candidate for rollout in members.values()],
                tests=distinct(tests.get(task, ())) if inputs.tests is not None else None,
                resolved={
                    name: bool(rollout.columns["resolved"])
                    for name, rollout in members.items()
                    if "resolved" in rollout.columns
                },
            ),
            rollouts=tuple(members.values()),
        )
        for task, members in by_task.items()
    ]
    return work, rejected


def _line(work: TaskWork, rollout: FinishedRollout, scores: TaskScores) -> dict[str, Any]:
    """Return the line of a rollout; a score that was not computed is absent."""
    name, task = rollout.candidate.trajectory_id, work.row.task
    names = {"task_id": task.id, "instance_id": task.instance_id, "trajectory_id": name}
    counts = asdict(scores.counts[name])
    given = {key: value for key, value in counts.items() if value not in (None, "")}
    return {**names, **rollout.columns, "patch_hash": counts["patch_hash"], **given}


def _test_line(work: TaskWork, test: JudgedTest) -> dict[str, Any]:
    """Return the line of a reproduction test; its passes are counted over rollouts with a verdict."""
    examination, quality = test.examination, test.quality
    counts = {name: value for name, value in asdict(quality).items() if name != "author"} if quality else {}
    return {
        "task_id": work.row.task.id,
        "author": examination.test.author,
        "digest": examination.test.digest,
        "rejection": examination.rejection,
        "detail": examination.detail,
        "failing": list(examination.failing),
        **counts,
        "toxic": quality is not None and quality.toxic,
        "misleading": quality is not None and quality.misleading,
    }
