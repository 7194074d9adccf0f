"""Verification: a model judges the trajectories of finished runs; every score is recorded as an event.

    spools of the named runs ─▶ transcripts ─▶ judge ─▶ trajectory_scored, run_progress
            ▲                                                      │
            └──────────── follow: until each has ended ────────────┘

Scores are kept in the run's own spool: an attempt after a kill scores the rest, and retries trajectories with
an error.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path

from engine.config.run import VerifierRun
from engine.errors import ConfigError, Problem, SpendLimitError
from engine.events.delivery.spool import SPOOL_NAME, read_lines
from engine.events.types import ScoreRecord, TrajectoryRef, TrajectoryScored
from engine.orchestrator.collection.ledger import type_of
from engine.orchestrator.context import RunContext, RunResult, RunStopped
from engine.orchestrator.setup import announce
from engine.orchestrator.verification.following import FollowedRuns
from engine.orchestrator.verification.judges import open_judge
from engine.orchestrator.verification.stored_trajectories import TrajectoryId
from engine.types import RolloutKey
from engine.verifiers.calibration import Forecast, calibrate
from engine.verifiers.execution_free import Judge, Judgement, Transcript, judge_all

_REPORT_EVERY_S = 0.5
_ERROR_CHARS = 1000


async def verify(config: VerifierRun, run: RunContext) -> RunResult:
    """Score every finished trajectory of the named runs, and report the calibration of the scores.

    Raises:
        ConfigError: no run is named, a named one does not exist, or the context exceeds the model's.
        CheckpointError: the judge's checkpoint is missing or unusable.
        RunEndingError: an endpoint refuses the judge's requests.
    """
    started = time.monotonic()
    announce(run)
    verification = Verification(config, run)
    await asyncio.to_thread(verification.read)
    opened = await open_judge(config, run)
    try:
        await run.interruptible(verification.work(opened.judge))
    except (RunStopped, SpendLimitError) as stop:
        return RunResult.of_stop(stop, verification.summary(started, opened.spent()))
    finally:
        await opened.close()
    return verification.result(started, opened.spent())


class Verification:
    """Scoring of trajectories over all attempts of a run: recorded scores and remaining work.

    Args:
        config: the run's configuration.
        run: this attempt.
    """

    def __init__(self, config: VerifierRun, run: RunContext) -> None:
        self._config = config.verifier
        self._run = run
        self._runs = FollowedRuns(
            run,
            config.verifier.runs,
            setting="verifier.runs",
            phases=config.verifier.phases,
            follow=config.verifier.follow,
        )
        self._found: dict[TrajectoryId, ScoreRecord] = {}
        """Newest record of each trajectory, over all attempts."""
        self._without_task: dict[TrajectoryId, str] = {}
        self._resolved: dict[TrajectoryId, bool] = {}
        """Verdicts of the trajectories in flight."""
        self._tried: set[TrajectoryId] = set()
        """Trajectories that this attempt has judged, with or without a score."""
        self._total = 0
        self._reported_at = 0.0

    def read(self) -> None:
        """Read the trajectories to score, and the scores of earlier attempts. Raises ConfigError."""
        if not self._config.runs:
            raise ConfigError(Problem("no run is named: name finished runs to score", "verifier.runs"))
        self._runs.read()
        self._found = dict(scores_of(self._run.run_dir))
        self._note()

    def _note(self) -> None:
        """Update the trajectories to score from the runs as read so far."""
        for source in self._runs.sources:
            self._without_task |= source.without_task()
        wanted = {trajectory_id for source in self._runs.sources for trajectory_id in source.ids}
        self._total = len(wanted)
        self._found = {key: record for key, record in self._found.items() if key in wanted}

    async def work(self, judge: Judge) -> None:
        """Score every trajectory that has no score; pauses between trajectories.

        With ``verifier.follow``, continue with new trajectories until every source run has ended.

        Raises:
            RunStopped, FencedError, DeliveryError: the attempt must end; judgements in flight are dropped.
            RunEndingError: no further trajectory would get a score.
        """
        await self._score(judge)
        while self._runs.going:
            await self._runs.wait_for_changes()
            await asyncio.to_thread(self._note)
            await self._score(judge)

    async def _score(self, judge: Judge) -> None:
        for key, reason in self._without_task.items():
            if key not in self._tried:
                self._record(Judgement(key=key, score=None, error=reason, attempts=1))
        left = _Feed(self._left(), self._run)
        self._report(force=True)
        while not left.is_exhausted:
            await self._run.safe_point()
            judgements = judge_all(
                judge, left, parallel=self._config.parallel, max_attempts=self._config.max_attempts
            )
            async for judgement in judgements:
                self._record(judgement)
        self._report(force=True)

    def _left(self) -> Iterator[tuple[TrajectoryId, Transcript]]:
        for source in self._runs.sources:
            wanted = {
                trajectory_id
                for trajectory_id in source.ids.keys() - self._without_task.keys() - self._tried
                if (known := self._found.get(trajectory_id)) is None or known.p_yes is None
            }
            for stored in source.read(wanted) if wanted else ():
                self._resolved[stored.id] = stored.resolved
                yield stored.id, stored.transcript

    def _record(self, judgement: Judgement[TrajectoryId]) -> None:
        key, score = judgement.key, judgement.score
        values = {} if score is None else {field.name: getattr(score, field.name) for field in fields(score)}
        record = ScoreRecord(
            **values,
            resolved=self._resolved.pop(key, None),
            error=judgement.error[:_ERROR_CHARS],
            attempts=judgement.attempts,
        )
        ref = TrajectoryRef(**asdict(key.key))
        self._run.sink.emit(TrajectoryScored, source=key.run, source_epoch=key.epoch, ref=ref, score=record)
        self._found[key] = record
        self._tried.add(key)
        self._report()

    def _report(self, *, force: bool = False) -> None:
        if not force and time.monotonic() - self._reported_at < _REPORT_EVERY_S:
            return
        self._reported_at = time.monotonic()
        failed = sum(record.p_yes is None for record in self._found.values())
        message = f"scored, {failed} without a score" if failed else "scored"
        going = self._runs.going
        if going:
            message += f"; waiting for more trajectories of run {', '.join(going)}"
        self._run.progress(message, len(self._found), self._total, is_whole=not going)

    def summary(self, started: float, spent: float | None) -> dict[str, float | int | str | None]:
        """Return counts, calibration against the verdicts, and the US dollars spent by all attempts."""
        groups: dict[str, list[Forecast]] = defaultdict(list)
        for key, record in self._found.items():
            if record.p_yes is not None and record.resolved is not None:
                groups[key.key.task_id].append(Forecast(record.p_yes, record.resolved))
        calibration = calibrate(groups)
        return {
            "trajectories": self._total,
            "scored": sum(record.p_yes is not None for record in self._found.values()),
            "without_score": sum(record.p_yes is None for record in self._found.values()),
            "shortened": sum(record.shortened > 0 for record in self._found.values()),
            "resolved": calibration.num_positive,
            "auc": calibration.auc,
            "within_task_auc": calibration.within_group_auc,
            "ece": calibration.ece,
            "brier": calibration.brier,
            "cost": spent,
            "seconds": round(time.monotonic() - started, 1),
        }

    def result(self, started: float, spent: float | None) -> RunResult:
        """Return the result; a run without a single score has failed."""
        failed = [(key, record) for key, record in self._found.items() if record.p_yes is None]
        summary = self.summary(started, spent)
        if not failed:
            return RunResult(state="succeeded", summary=summary)
        key, record = failed[0]
        self._run.alert(
            "warning",
            "verifier_scores_missing",
            f"{len(failed)} of {self._total} trajectories have no score; {key}: {record.error}",
            task_ids=list(dict.fromkeys(key.key.task_id for key, _ in failed))[:20],
        )
        nothing = len(failed) == len(self._found)
        reason = f"no trajectory could be scored: {record.error}" if nothing else ""
        return RunResult(state="failed" if nothing else "succeeded", reason=reason, summary=summary)


class _Feed:
    """Transcripts to judge; iteration stops at a requested pause, and a new one continues with the rest."""

    def __init__(self, items: Iterator[tuple[TrajectoryId, Transcript]], run: RunContext) -> None:
        self._items = items
        self._run = run
        self.is_exhausted = False

    def __iter__(self) -> Iterator[tuple[TrajectoryId, Transcript]]:
        while self._run.control.desired() == "run":
            item = next(self._items, None)
            if item is None:
                self.is_exhausted = True
                return
            yield item


def scores_of(run_dir: Path) -> Iterator[tuple[TrajectoryId, ScoreRecord]]:
    """Yield the scores recorded by all attempts of a verification run, oldest first."""
    for line in read_lines(run_dir / SPOOL_NAME):
        if type_of(line.data) == "trajectory_scored":
            event = TrajectoryScored.model_validate_json(line.data)
            key = RolloutKey(**event.ref.model_dump())
            yield TrajectoryId(run=event.source, epoch=event.source_epoch, key=key), event.score
