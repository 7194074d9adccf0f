"""Validation of a dataset: each row must fail without changes and pass with its gold patch, every time.

    rows ─▶ grader ─▶ no-op × k, gold × k ─▶ judge ─▶ validation.jsonl ─▶ task_validated, run_progress
                                               ├─ valid ─▶ prover ─▶ references/
                                               └─ valid ─▶ wrong patches ─▶ test strength

Rows are independent: at most ``grading.max_parallel`` at once, each in fresh sandboxes of the configured
backend. The records on disk are the journal: a resumed attempt skips the rows that its run has a finding
about. Infrastructure failures are retried and are no finding about a row.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path

from engine.config.run import ValidateRun
from engine.datasets.health import row_content
from engine.datasets.store import dataset_path, load_dataset
from engine.errors import DatasetError
from engine.events.health import (
    FAULTS,
    MAX_NAMED,
    RowHealth,
    RowStatus,
    ValidationRecord,
    append,
    read,
    row_health,
)
from engine.events.types import TaskValidated
from engine.grading.counterfactual.store import FileReferences
from engine.orchestrator.context import RunContext, RunResult
from engine.orchestrator.parallel_work import work_in_parallel
from engine.orchestrator.setup import announce, open_backend
from engine.orchestrator.tasks.row_check import RowCheck, RowFinding
from engine.orchestrator.verification.stored_trajectories import open_sources, patches_with
from engine.sandbox.base import SandboxBackend
from engine.sandbox.registries import check_registries
from engine.types import GradeRule, TaskRow, Verdict

_REPORT_EVERY_S = 0.5
_REASON_CHARS = 2000


async def validate_dataset(config: ValidateRun, run: RunContext) -> RunResult:
    """Grade the configured rows and record the findings with the dataset.

    Raises:
        DatasetError: no such dataset or split, or its tasks have no tests to run.
        PreflightError: lists everything that the machine lacks.
    """
    started = time.monotonic()
    announce(run)
    validation = Validation(config, run)
    await validation.work(await open_backend(config.sandbox, run))
    return validation.outcome(time.monotonic() - started)


class Validation:
    """Validation of one run's rows: known findings and remaining work.

    Args:
        config: the run's configuration.
        run: this attempt.

    Raises:
        DatasetError: no such dataset or split, or its tasks have no tests to run.
    """

    def __init__(self, config: ValidateRun, run: RunContext) -> None:
        self._config = config
        self._run = run
        self._folder = dataset_path(run.home, config.dataset.name)
        self._references = FileReferences(self._folder)
        rows = _configured_rows(config, run.home)
        self._contents = {row.task.id: row_content(row) for row in rows}
        records = read(self._folder)
        self._records = {
            record.task_id: record
            for record in records
            if isinstance(record, ValidationRecord)
            and record.run_id == run.run_id
            and record.status is not RowStatus.INFRA
            and record.content == self._contents.get(record.task_id)
        }
        others = [record for record in records if getattr(record, "run_id", "") != run.run_id]
        known = row_health(others, self._contents)
        wanted = [row for row in rows if _is_wanted(config.validation.rows, known.get(row.task.id))]
        self._num_rows = len(wanted)
        self._left = deque(row for row in wanted if row.task.id not in self._records)
        self._reported_at = 0.0

    async def work(self, backend: SandboxBackend) -> None:
        """Grade every remaining row, several at once; pauses between rows.

        Raises:
            RunStopped, FencedError, DeliveryError: the attempt must end; gradings in flight are dropped.
        """
        check = RowCheck(
            self._config,
            backend=backend,
            references=self._references,
            run_id=self._run.run_id,
            failed=await self._run.interruptible(asyncio.to_thread(_failed_patches, self._config, self._run)),
        )
        self._report(force=True)
        await work_in_parallel(
            self._run,
            self._left,
            check,
            backend=backend,
            image=lambda row: row.task.image,
            width=self._config.grading.max_parallel,
            record=self._record,
        )
        self._report(force=True)

    async def _record(self, found: Sequence[RowFinding]) -> None:
        """Record findings on disk, then as events; the server reads the disk after a crash in between."""
        if not found:
            return
        records = [self._record_of(finding) for finding in found]
        await asyncio.to_thread(append, self._folder, records)
        for record in records:
            self._records[record.task_id] = record
            self._run.sink.emit(TaskValidated, record=record.without_secrets())
        self._report()

    def _record_of(self, found: RowFinding) -> ValidationRecord:
        task_id, finding = found.row.task.id, found.health
        return ValidationRecord(
            id=f"{self._run.run_id}/{task_id}",
            task_id=task_id,
            content=self._contents[task_id],
            run_id=self._run.run_id,
            time=time.time(),
            status=finding.status,
            noop=finding.noop,
            gold=finding.gold,
            repeats=self._config.validation.repeats,
            flaky_tests=list(finding.flaky_tests[:MAX_NAMED]),
            num_flaky_tests=len(finding.flaky_tests),
            reason=finding.reason[:_REASON_CHARS],
            quarantine=self._config.validation.quarantine,
            coverage=found.coverage,
            strength=found.strength,
        )

    def _counts(self) -> dict[RowStatus, int]:
        counts = Counter(record.status for record in self._records.values())
        return {status: counts[status] for status in RowStatus}

    def _report(self, *, force: bool = False) -> None:
        if not force and time.monotonic() - self._reported_at < _REPORT_EVERY_S:
            return
        self._reported_at = time.monotonic()
        parts = [
            f"{count} {status.value.replace('_', ' ')}" for status, count in self._counts().items() if count
        ]
        message = f"validated: {', '.join(parts)}" if parts else "grading the first rows"
        self._run.progress(message, len(self._records), self._num_rows, is_whole=True)

    def outcome(self, seconds: float) -> RunResult:
        """Return the counts. A run that could not test a single row has failed."""
        counts = self._counts()
        health = row_health(read(self._folder), self._contents)
        lost = [record for record in self._records.values() if record.status is RowStatus.INFRA]
        if lost:
            self._run.alert(
                "warning",
                "validation_infrastructure",
                f"{len(lost)} of {self._num_rows} rows could not be tested: {lost[0].reason}",
                task_ids=[record.task_id for record in lost[:20]],
            )
        nothing = bool(lost) and len(lost) == len(self._records)
        return RunResult(
            state="failed" if nothing else "succeeded",
            reason=f"no row could be tested: {lost[0].reason}" if nothing else "",
            summary={
                "dataset": self._config.dataset.name,
                "rows": self._num_rows,
                **{status.value: count for status, count in counts.items()},
                "quarantined": sum(health.get(task_id, RowHealth()).quarantined for task_id in self._records),
                **self._tests(),
                **self._strength(),
                "seconds": round(seconds, 1),
            },
        )

    def _tests(self) -> dict[str, int]:
        """Return the numbers of tests of valid rows by their best proven mutant."""
        covered = [record.coverage for record in self._records.values() if record.coverage is not None]
        return {
            "tests_value": sum(coverage.value for coverage in covered),
            "tests_changed": sum(coverage.changed for coverage in covered),
            "tests_added": sum(coverage.added for coverage in covered),
            "tests_without_mutant": sum(coverage.none for coverage in covered),
        }

    def _strength(self) -> dict[str, int]:
        """Return the numbers of graded and rejected wrong patches, and of valid rows without any."""
        valid = [record for record in self._records.values() if record.status is RowStatus.VALID]
        measured = [record.strength for record in valid if record.strength is not None]
        unmeasured = len(valid) - sum(bool(strength.graded) for strength in measured)
        return {
            "strength_unmeasured": unmeasured if self._config.validation.wrong_patches else 0,
            "wrong_patches": sum(strength.graded for strength in measured),
            "wrong_patches_rejected": sum(strength.rejected for strength in measured),
        }


def _failed_patches(config: ValidateRun, run: RunContext) -> dict[tuple[str, str], list[str]]:
    """Return the patches of the failed rollouts of the configured runs, by ``RowIdentity.start``.

    Raises:
        ConfigError: a run does not exist or has no trajectories.
    """
    settings = config.validation
    sources = open_sources(run, settings.wrong_patches_of, setting="validation.wrong_patches_of")
    return patches_with(Verdict.FAILED, sources, limit=settings.wrong_patches)


def _configured_rows(config: ValidateRun, home: Path) -> Sequence[TaskRow]:
    dataset = load_dataset(home, config.dataset.name)
    splits = config.dataset.splits
    rows = [row for split in splits for row in dataset.split(split)] if splits else list(dataset.rows)
    if rows and all(row.answer.grade_rule == GradeRule.GOAL for row in rows):
        raise DatasetError(
            f"'{config.dataset.name}' is judged by its environment: there are no tests to validate"
        )
    rows = rows[: config.dataset.limit]
    check_registries((row.task.image for row in rows), config.sandbox)
    return rows


def _is_wanted(which: str, health: RowHealth | None) -> bool:
    status = health.status if health else None
    if which == "all" or status is None:
        return True
    return which == "suspect" and status in {*FAULTS, RowStatus.INFRA}
