"""Verification by tests: score the patches of finished runs by regression tests and agent-written tests.

    spools of the named runs ─▶ patches and written tests ─▶ sandboxes ─▶ test_examined, trajectory_scored

An attempt after a kill skips the tasks whose trajectories all have scores. For the others it repeats only
test runs without a report in ``reports/`` of the run's folder.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import asdict
from pathlib import Path

from engine.config.run import TestVerifierRun
from engine.errors import ConfigError, Problem
from engine.events.delivery.spool import SPOOL_NAME, read_lines
from engine.events.types import (
    ExaminedTestRecord,
    ScoreRecord,
    TestExamined,
    TrajectoryRef,
    TrajectoryScored,
)
from engine.orchestrator.collection.ledger import type_of
from engine.orchestrator.context import RunContext, RunResult, RunStopped
from engine.orchestrator.setup import announce, open_backend
from engine.orchestrator.verification.stored_trajectories import (
    StoredTrajectories,
    TrajectoryId,
    open_sources,
)
from engine.orchestrator.verification.verify import scores_of
from engine.types import RolloutKey, TaskRow
from engine.verifiers.execution_based.reproduction import ReproductionTest
from engine.verifiers.execution_based.runs import TestRuns
from engine.verifiers.execution_based.scores import CandidatePatch
from engine.verifiers.execution_based.store import FolderReports
from engine.verifiers.execution_based.task_scoring import (
    JudgedTest,
    PassCounts,
    TaskScores,
    TaskWork,
    distinct,
    score_task,
)
from engine.verifiers.execution_based.testing_agent import reproduction_test

REPORTS_NAME = "reports"
"""Folder in the run folder with the reports of test runs."""
_ERROR_CHARS = 1000


async def verify_by_tests(config: TestVerifierRun, run: RunContext) -> RunResult:
    """Score every patch of the named runs, and report toxic tests.

    Raises:
        ConfigError: no run is named, or a named one does not exist or has no test for these tasks.
        PreflightError: lists everything that the machine lacks.
    """
    started = time.monotonic()
    announce(run)
    verification = TestVerification(config, run)
    try:
        await run.interruptible(asyncio.to_thread(verification.read))
    except RunStopped as stop:
        return RunResult.of_stop(stop)
    limits = config.verifier
    runs = TestRuns(
        backend=await open_backend(config.sandbox, run),
        sandbox=config.sandbox,
        run_id=run.run_id,
        timeout_s=limits.timeout_s,
        max_parallel=limits.max_parallel,
        store=FolderReports(run.run_dir / REPORTS_NAME),
    )
    try:
        await run.interruptible(verification.work(runs))
    except RunStopped as stop:
        return RunResult.of_stop(stop, verification.summary(started))
    return verification.result(started)


class TestVerification:
    """Scoring of patches over all attempts of a run: recorded scores and remaining work.

    Args:
        config: the run's configuration.
        run: this attempt.
    """

    __test__ = False

    def __init__(self, config: TestVerifierRun, run: RunContext) -> None:
        self._config = config.verifier
        self._run = run
        self._work: list[TaskWork] = []
        self._ids: dict[str, TrajectoryId] = {}
        """Candidates and authors of tests, by the text of their ids."""
        self._without_task: dict[TrajectoryId, str] = {}
        self._resolved: dict[str, bool] = {}
        self._found: dict[TrajectoryId, ScoreRecord] = {}
        """Newest record of each trajectory, over all attempts."""
        self._tests: dict[TrajectoryId, ExaminedTestRecord] = {}
        """Newest record of each written test by its author, over all attempts."""

    def read(self) -> None:
        """Read the patches, the written tests, and the scores of earlier attempts.

        Raises:
            ConfigError: no run is named, or a named one does not exist or has no test for these tasks.
            RunStopped, FencedError, DeliveryError: the attempt must end.
        """
        if not self._config.runs:
            raise ConfigError(Problem("no run is named: name finished runs to score", "verifier.runs"))
        sources = open_sources(
            self._run, self._config.runs, setting="verifier.runs", phases=self._config.phases
        )
        rows: dict[str, TaskRow] = {}
        patches: dict[str, list[CandidatePatch]] = defaultdict(list)
        for source in sources:
            rows |= source.rows
            self._without_task |= source.without_task()
            for task_id, name, patch in self._patches(source):
                patches[task_id].append(CandidatePatch(trajectory_id=name, patch=patch))
        tests = self._read_tests(patches.keys())
        self._work = [
            TaskWork(
                row=rows[task_id],
                candidates=candidates,
                tests=distinct(tests.get(task_id, ())) if self._config.tests else None,
                resolved=self._resolved,
            )
            for task_id, candidates in patches.items()
        ]
        known = set(self._ids.values())
        self._found = {key: record for key, record in scores_of(self._run.run_dir) if key in known}
        self._tests = {key: test for key, test in _examined(self._run.run_dir) if key in known}

    def _patches(self, source: StoredTrajectories) -> Iterator[tuple[str, str, str]]:
        """Yield task, name and patch of each trajectory; store its id and verdict under its name."""
        for stored in source.read(source.ids):
            self._run.check()
            name = str(stored.id)
            self._ids[name] = stored.id
            self._resolved[name] = stored.resolved
            yield stored.id.key.task_id, name, stored.transcript.patch

    def _read_tests(self, tasks: Collection[str]) -> dict[str, list[ReproductionTest]]:
        """Return the written tests of the tasks to score, in the order of the setting."""
        tests: dict[str, list[ReproductionTest]] = defaultdict(list)
        for source in open_sources(self._run, self._config.tests, setting="verifier.tests"):
            for task_id, name, patch in self._patches(source):
                test = reproduction_test(patch, author=name)
                if task_id in tasks and test.content:
                    tests[task_id].append(test)
        if self._config.tests and not tests:
            raise ConfigError(
                Problem("no test was written for the tasks of the runs to score", "verifier.tests")
            )
        return tests

    async def work(self, runs: TestRuns) -> None:
        """Score the remaining tasks, several at once; a pause waits for those in progress.

        Raises:
            RunStopped, FencedError, DeliveryError: the attempt must end; tasks in progress are dropped.
        """
        for key, reason in self._without_task.items():
            self._record(key, PassCounts(error=reason))
        left = [work for work in self._work if not self._is_scored(work)]
        active: set[asyncio.Task[None]] = set()
        self._report()
        try:
            while left or active:
                if not active:
                    await self._run.safe_point()
                while left and len(active) < self._config.max_parallel and not self._is_pausing:
                    active.add(asyncio.create_task(self._score(runs, left.pop(0))))
                if not active:
                    continue
                done, active = await asyncio.wait(active, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in active:
                task.cancel()
            await asyncio.gather(*active, return_exceptions=True)

    @property
    def _is_pausing(self) -> bool:
        return self._run.control.desired() != "run"

    def _is_scored(self, work: TaskWork) -> bool:
        records = (self._found.get(self._ids[candidate.trajectory_id]) for candidate in work.candidates)
        return all(record is not None and not record.error for record in records)

    async def _score(self, runs: TestRuns, work: TaskWork) -> None:
        scores = await score_task(runs, work, self._config)
        self._record_task(scores)
        self._report()

    def _record_task(self, scores: TaskScores) -> None:
        for test in scores.tests:
            record = _test_record(test)
            key = self._ids[test.examination.test.author]
            self._run.sink.emit(
                TestExamined, source=key.run, source_epoch=key.epoch, ref=_ref(key), test=record
            )
            self._tests[key] = record
        for name, counts in scores.counts.items():
            self._record(self._ids[name], counts)

    def _record(self, key: TrajectoryId, counts: PassCounts) -> None:
        values = asdict(counts)
        values.pop("patch_hash")
        record = ScoreRecord(
            **{**values, "error": counts.error[:_ERROR_CHARS], "detail": counts.detail[:_ERROR_CHARS]},
            resolved=self._resolved.get(str(key)),
        )
        self._run.sink.emit(
            TrajectoryScored, source=key.run, source_epoch=key.epoch, ref=_ref(key), score=record
        )
        self._found[key] = record

    def _report(self) -> None:
        failed = sum(bool(record.error) for record in self._found.values())
        message = f"scored, {failed} without a score" if failed else "scored"
        self._run.progress(message, len(self._found), self._total, is_whole=True)

    @property
    def _total(self) -> int:
        return len(self._without_task) + sum(len(work.candidates) for work in self._work)

    def summary(self, started: float) -> dict[str, float | int | str | None]:
        """Return counts of trajectories and of written tests over all attempts."""
        records = list(self._found.values())
        tests = Counter(test.rejection or "kept" for test in self._tests.values())
        return {
            "trajectories": self._total,
            "scored": sum(not record.error for record in records),
            "without_score": sum(bool(record.error) for record in records),
            "resolved": sum(record.resolved is True for record in records),
            "without_regression_tests": sum(record.regression_tests == 0 for record in records),
            "tests": sum(tests.values()),
            "tests_kept": tests["kept"],
            "tests_toxic": sum(test.is_toxic for test in self._tests.values()),
            "seconds": round(time.monotonic() - started, 1),
        }

    def result(self, started: float) -> RunResult:
        """Return the result; a run without a single score has failed."""
        summary = self.summary(started)
        toxic = [author.key.task_id for author, test in self._tests.items() if test.is_toxic]
        if toxic:
            self._run.alert(
                "warning",
                "toxic_tests",
                f"{len(toxic)} of {summary['tests_kept']} tests that agents wrote fail every candidate that "
                "resolves its task",
                task_ids=list(dict.fromkeys(toxic))[:20],
            )
        failed = [(key, record) for key, record in self._found.items() if record.error]
        if not failed:
            return RunResult(state="succeeded", summary=summary)
        key, record = failed[0]
        self._run.alert(
            "warning",
            "verifier_scores_missing",
            f"{len(failed)} of {self._total} trajectories lack scores; {key}: {record.error}",
            task_ids=list(dict.fromkeys(key.key.task_id for key, _ in failed))[:20],
        )
        if len(failed) < len(self._found):
            return RunResult(state="succeeded", summary=summary)
        reason = f"no trajectory could be scored: {record.error}"
        return RunResult(state="failed", reason=reason, summary=summary)


def _ref(key: TrajectoryId) -> TrajectoryRef:
    return TrajectoryRef(**asdict(key.key))


def _test_record(test: JudgedTest) -> ExaminedTestRecord:
    examination = test.examination
    counts = {}
    if test.quality is not None:
        counts = {name: getattr(test.quality, name) for name in ("good", "good_passed", "bad", "bad_passed")}
    return ExaminedTestRecord(
        digest=examination.test.digest,
        rejection=examination.rejection or "",
        detail=examination.detail[:_ERROR_CHARS],
        tests=len(examination.failing),
        **counts,
    )


def _examined(run_dir: Path) -> Iterator[tuple[TrajectoryId, ExaminedTestRecord]]:
    """Yield author and record of every test that the run's attempts examined, oldest first."""
    for line in read_lines(run_dir / SPOOL_NAME):
        if type_of(line.data) == "test_examined":
            event = TestExamined.model_validate_json(line.data)
            key = RolloutKey(**event.ref.model_dump())
            yield TrajectoryId(run=event.source, epoch=event.source_epoch, key=key), event.test
