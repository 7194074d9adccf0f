"""Collection of the tasks of one split: candidates are tried in batches until enough faults are proven."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from engine.datasets.curation.candidates import Candidate, CandidateQueue
from engine.datasets.curation.injected import DetectedFault, make_row
from engine.datasets.curation.trials import Curation, despite_host, try_candidate
from engine.datasets.funnel import Stages, reporting
from engine.errors import HostError
from engine.threads import gather_or_cancel, in_thread
from engine.types import TaskRow

STAGES: Stages = (
    ("faults", frozenset()),
    ("tried", frozenset({"waiting", "not_tried", "enough_tries"})),
    ("tests run", frozenset({"machine", "sandbox", "no_report"})),
    ("noticed", frozenset({"unnoticed", "odd_outcome", "earlier"})),
    ("stable", frozenset({"unstable"})),
    ("mended", frozenset({"not_mended"})),
    ("wanted", frozenset({"not_wanted"})),
)
"""Stages of the funnel."""
_BATCH_PER_WORKER = 8


async def collect(run: Curation, candidates: Sequence[Candidate], split: str, wanted: int) -> list[TaskRow]:
    """Return up to ``wanted`` tasks; the order in which trials end does not change them.

    Raises:
        HostError: this machine failed several candidates in a row.
    """
    collection = _Collection(
        run=run,
        split=split,
        wanted=wanted,
        queue=CandidateQueue(candidates, seed=run.seed),
        permits=asyncio.Semaphore(run.config.workers),
        tasks_before=run.funnel.tasks,
    )
    async with reporting(run.funnel, run.progress, f"{split} tasks", run.amounts):
        while len(collection.rows) < wanted and await collection.try_batch():
            pass
    if len(collection.rows) < wanted:
        run.say(f"only {len(collection.rows)} of {wanted} {split} tasks found")
        for candidate in collection.queue.left():
            run.funnel.candidates -= 1
            collection.lose(candidate, "enough_tries")
    return collection.rows


@dataclass(slots=True, kw_only=True)
class _Collection:
    """Tasks of one split, and what their faults are taken from."""

    run: Curation
    split: str
    wanted: int
    queue: CandidateQueue
    permits: asyncio.Semaphore
    tasks_before: int
    """Tasks of earlier splits."""
    rows: list[TaskRow] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)
    _proven: int = 0
    """Tasks of this split that can be made of proven faults, as far as known."""

    async def try_batch(self) -> bool:
        """Try the next candidates and make tasks of proven faults; return False if no candidate is left."""
        size = min(_BATCH_PER_WORKER * self.run.config.workers, 2 * (self.wanted - len(self.rows)))
        batch = self.queue.take(size)
        for detected in await self._detect(batch):
            if len(self.rows) < self.wanted:
                await self._make_task(detected)
        return bool(batch)

    async def _detect(self, batch: Sequence[Candidate]) -> list[DetectedFault]:
        """Return the candidates whose fault the tests detect every time, in their order."""
        first = self.run.funnel.tried
        kept = [number for number, item in enumerate(batch) if self.run.kept_trial(item) is not None]
        new = [number for number in range(len(batch)) if number not in kept]
        detected: dict[int, DetectedFault | None] = {}

        async def detect(number: int) -> None:
            detected[number] = await self._detect_one(batch[number], position=first + number)

        # Kept trials count before the first report of this attempt: an earlier one has reported them.
        await gather_or_cancel(detect(number) for number in kept)
        self.run.funnel.is_live |= bool(new)
        await gather_or_cancel(detect(number) for number in new)
        return [fault for _, fault in sorted(detected.items()) if fault is not None]

    async def _detect_one(self, candidate: Candidate, *, position: int) -> DetectedFault | None:
        async with self.permits:
            trial = await try_candidate(self.run, candidate)
        self.run.funnel.tried += 1
        self.run.funnel.trial_seconds += trial.seconds
        if trial.problem:
            self.lose(candidate, trial.problem, detail=trial.detail, position=position)
            return None
        self._count_proven(1)
        return DetectedFault(
            candidate=candidate,
            failing=trial.failing,
            passing=tuple(test for test in candidate.tests if test not in trial.failing),
            exception=trial.exception,
        )

    async def _make_task(self, detected: DetectedFault) -> None:
        run = self.run
        make = partial(make_row, detected, self.split, self._names, hint=run.config.hint, home=run.home)
        row = await despite_host(run, partial(in_thread, make))
        if isinstance(row, HostError):
            self._count_proven(-1)
            self.lose(detected.candidate, "machine", detail=str(row))
            return
        self.queue.keep(detected.candidate)
        self.rows.append(row)
        await in_thread(partial(run.funnel.measure, run.home, row.task.image.removeprefix("local:")))

    def _count_proven(self, change: int) -> None:
        self._proven += change
        self.run.funnel.proven += change
        self.run.funnel.tasks = self.tasks_before + min(self._proven, self.wanted)

    def lose(self, candidate: Candidate, reason: str, *, detail: str = "", position: int = 0) -> None:
        """Count a candidate that becomes no task."""
        fault = candidate.fault
        self.run.funnel.lose(
            reason,
            f"{candidate.path}:{fault.line} {fault.function}",
            origin=candidate.baseline.source.spec,
            detail=f"{fault.kind}\n-{fault.original}\n+{fault.mutated}\n{detail}",
            position=position,
        )
