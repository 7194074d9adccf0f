"""Regrading: the patches of finished runs graded again by the current tests and rules, without sampling.

    spools of the named runs ─▶ rows ─▶ distinct patches ─▶ grader ─▶ trajectory_regraded, run_progress
                                  └── no row, no patch, … ────────────────▲

The run's own spool is the journal: an attempt after a kill grades the rest, patches that infrastructure lost,
and those whose row has changed since.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from engine.config.run import RegradeRun
from engine.datasets.store import dataset_path
from engine.errors import ConfigError, DatasetError, Problem
from engine.evaluation.flips import FLIPS, flip_of
from engine.events.delivery.spool import SPOOL_NAME, read_lines
from engine.events.regrading import (
    MAX_DETAIL_CHARS,
    MAX_FAILED_TESTS,
    MAX_TEST_CHARS,
    Obstacle,
    RegradeRecord,
)
from engine.events.types import TrajectoryRef, TrajectoryRegraded
from engine.grading.counterfactual.store import FileReferences
from engine.grading.grader import Grader
from engine.grading.retries import graded, retry_waits
from engine.orchestrator.collection.ledger import type_of
from engine.orchestrator.context import RunContext, RunResult, RunStopped
from engine.orchestrator.parallel_work import work_in_parallel
from engine.orchestrator.regrading.plan import DistinctPatch, Plan, make_plan
from engine.orchestrator.regrading.rows import DatasetRows, GradableRow, Refusal, RowsOfRun
from engine.orchestrator.setup import announce, open_backend
from engine.orchestrator.verification.stored_trajectories import TrajectoryId, open_sources
from engine.sandbox.base import SandboxBackend
from engine.sandbox.registries import check_registries
from engine.types import Grade, RolloutKey, TestOutcome, Verdict

_REPORT_EVERY_S = 0.5
_KEPT_CHARS = 200


async def regrade(config: RegradeRun, run: RunContext) -> RunResult:
    """Grade the patches of the named runs again, and report the flips.

    Raises:
        ConfigError: no run is named, or a named run or dataset cannot be read.
        PreflightError: lists everything that the machine lacks.
    """
    started = time.monotonic()
    announce(run)
    regrading = Regrading(config, run)
    try:
        await run.interruptible(asyncio.to_thread(regrading.read))
        await regrading.work(await open_backend(config.sandbox, run))
    except RunStopped as stop:
        return RunResult.of_stop(stop, regrading.summary(started))
    return regrading.result(started)


class Regrading:
    """Regrading over all attempts of a run: recorded verdicts and remaining work.

    Args:
        config: the run's configuration.
        run: this attempt.
    """

    def __init__(self, config: RegradeRun, run: RunContext) -> None:
        self._config = config
        self._run = run
        self._plan = Plan([], {}, {})
        self._records: dict[TrajectoryId, RegradeRecord] = {}
        """Newest record of each trajectory, over all attempts, without its long fields."""
        self._left: deque[DistinctPatch] = deque()
        self._graders: dict[str, Grader] = {}
        """Grader of each dataset, which stores the references of its rows."""
        self._reported_at = 0.0

    def read(self) -> None:
        """Read the trajectories, their rows, and the verdicts of earlier attempts.

        Raises:
            ConfigError: no run is named, or a named run or dataset cannot be read.
            RunStopped, FencedError, DeliveryError: the attempt must end.
        """
        settings = self._config.regrade
        if not settings.runs:
            raise ConfigError(Problem("no run is named: name finished runs to grade again", "regrade.runs"))
        sources = open_sources(self._run, settings.runs, setting="regrade.runs", phases=settings.phases)
        datasets = DatasetRows(self._run.home, own_box=self._config.grading.own_box)
        try:
            rows = [RowsOfRun(source, datasets, dataset=settings.dataset) for source in sources]
        except DatasetError as error:
            raise ConfigError(Problem(str(error), "regrade.dataset")) from error
        self._plan = make_plan(zip(sources, rows, strict=True), check=self._run.check)
        images = (patch.row.row.task.image for patch in self._plan.patches)
        check_registries(images, self._config.sandbox)
        self._records = {
            key: _without_texts(record)
            for key, record in records_of(self._run.run_dir)
            if key in self._plan.originals
        }
        self._left = deque(patch for patch in self._plan.patches if not self._is_done(patch))

    def _is_done(self, patch: DistinctPatch) -> bool:
        return all(
            (record := self._records.get(member)) is not None
            and record.content == patch.row.content
            and record.verdict is not Verdict.INFRA_ERROR
            for member in patch.members
        )

    async def work(self, backend: SandboxBackend) -> None:
        """Grade the remaining patches, several at once; a pause waits for those in progress.

        Raises:
            RunStopped, FencedError, DeliveryError: the attempt must end; gradings in flight are dropped.
        """
        for key, refusal in self._plan.refused.items():
            if (known := self._records.get(key)) is None or known.obstacle is not refusal.obstacle:
                self._refuse(key, refusal)
        self._report(force=True)
        await work_in_parallel(
            self._run,
            self._left,
            lambda patch: self._grade(self._grader(patch.row.dataset, backend), patch),
            backend=backend,
            image=lambda patch: patch.row.row.task.image,
            width=self._config.grading.max_parallel,
            record=self._record_grades,
        )
        self._report(force=True)

    def _grader(self, dataset: str, backend: SandboxBackend) -> Grader:
        if dataset not in self._graders:
            self._graders[dataset] = Grader(
                backend=backend,
                # Patches are distinct: no verdict could be reused, and each would be kept with its log.
                config=self._config.grading.model_copy(update={"reuse_verdicts": False}),
                sandbox=self._config.sandbox,
                run_id=self._run.run_id,
                store=FileReferences(dataset_path(self._run.home, dataset)),
            )
        return self._graders[dataset]

    async def _grade(self, grader: Grader, distinct: DistinctPatch) -> tuple[DistinctPatch, Grade]:
        """Grade a patch as an evaluation does."""
        patch = await asyncio.to_thread(distinct.read)
        settings = self._config.regrade
        grade = await graded(
            lambda: grader.grade(distinct.row.row, patch, evaluation=True),
            retry_waits(settings.infra_retries, settings.retry_wait_s),
        )
        return distinct, grade

    async def _record_grades(self, grades: list[tuple[DistinctPatch, Grade]]) -> None:
        """Record the verdict of each patch for each of its trajectories."""
        for distinct, grade in grades:
            for member in distinct.members:
                self._record(member, self._record_of(member, distinct.row, grade))
            self._report()

    def _record_of(self, key: TrajectoryId, row: GradableRow, grade: Grade) -> RegradeRecord:
        original = self._plan.originals[key]
        failed = [test.test_id for test in grade.tests if test.outcome is not TestOutcome.PASSED]
        return RegradeRecord(
            old_verdict=original.verdict,
            old_reward=original.reward,
            verdict=grade.verdict,
            reward=grade.reward,
            detail=grade.detail[:MAX_DETAIL_CHARS],
            failed_tests=[test[:MAX_TEST_CHARS] for test in failed[:MAX_FAILED_TESTS]],
            num_failed_tests=len(failed),
            dataset=row.dataset,
            row=row.row.task.id,
            content=row.content,
        )

    def _refuse(self, key: TrajectoryId, refusal: Refusal) -> None:
        original = self._plan.originals[key]
        record = RegradeRecord(
            old_verdict=original.verdict,
            old_reward=original.reward,
            obstacle=refusal.obstacle,
            detail=refusal.detail[:MAX_DETAIL_CHARS],
        )
        self._record(key, record)

    def _record(self, key: TrajectoryId, record: RegradeRecord) -> None:
        ref = TrajectoryRef(**asdict(key.key))
        self._run.sink.emit(
            TrajectoryRegraded, source=key.run, source_epoch=key.epoch, ref=ref, regrade=record
        )
        self._records[key] = _without_texts(record)

    def _report(self, *, force: bool = False) -> None:
        if not force and time.monotonic() - self._reported_at < _REPORT_EVERY_S:
            return
        self._reported_at = time.monotonic()
        flips = sum(bool(flip_of(record.old_verdict, record.verdict)) for record in self._records.values())
        message = f"graded again, {flips} flips" if flips != 1 else "graded again, 1 flip"
        self._run.progress(message, len(self._records), len(self._plan.originals), is_whole=True)

    def summary(self, started: float) -> dict[str, float | int | str | None]:
        """Return counts of trajectories, obstacles and flips over all attempts."""
        records = self._records.values()
        verdicts = Counter(record.verdict for record in records)
        obstacles = Counter(record.obstacle for record in records)
        flips = Counter(flip_of(record.old_verdict, record.verdict) for record in records)
        regraded = [record for record in records if record.verdict not in (None, Verdict.INFRA_ERROR)]
        return {
            "trajectories": len(self._plan.originals),
            "patches": len(self._plan.patches),
            "regraded": len(regraded),
            "lost": verdicts[Verdict.INFRA_ERROR],
            "not_regraded": sum(record.obstacle is not None for record in records),
            "passed_before": sum(record.old_verdict is Verdict.PASSED for record in regraded),
            "passed_after": verdicts[Verdict.PASSED],
            **{f"obstacle_{obstacle}": obstacles[obstacle] for obstacle in Obstacle},
            **{f"flip_{kind}": flips[kind] for kind in FLIPS},
            "seconds": round(time.monotonic() - started, 1),
        }

    def result(self, started: float) -> RunResult:
        """Return the result; a run without a single new verdict has failed."""
        summary = self.summary(started)
        lost = [
            (key, record) for key, record in self._records.items() if record.verdict is Verdict.INFRA_ERROR
        ]
        if lost:
            key, record = lost[0]
            self._run.alert(
                "warning",
                "regrading_infrastructure",
                f"{len(lost)} of {summary['trajectories']} trajectories have no new verdict; {key}: "
                f"{record.detail}",
                task_ids=list(dict.fromkeys(key.key.task_id for key, _ in lost))[:20],
            )
        if summary["regraded"]:
            return RunResult(state="succeeded", summary=summary)
        reasons = [record.detail for _, record in lost] or [r.detail for r in self._plan.refused.values()]
        first = reasons[0] if reasons else "the runs have no trajectory with a verdict"
        reason = f"no trajectory could be graded again: {first}"
        return RunResult(state="failed", reason=reason, summary=summary)


def _without_texts(record: RegradeRecord) -> RegradeRecord:
    """Return a record whose size does not depend on tests and logs, to be kept for each trajectory."""
    return record.model_copy(update={"failed_tests": [], "detail": record.detail[:_KEPT_CHARS]})


def records_of(run_dir: Path) -> Iterator[tuple[TrajectoryId, RegradeRecord]]:
    """Yield the verdicts recorded by all attempts of a regrading, oldest first."""
    for line in read_lines(run_dir / SPOOL_NAME):
        if type_of(line.data) == "trajectory_regraded":
            event = TrajectoryRegraded.model_validate_json(line.data)
            key = RolloutKey(**event.ref.model_dump())
            yield TrajectoryId(run=event.source, epoch=event.source_epoch, key=key), event.regrade
