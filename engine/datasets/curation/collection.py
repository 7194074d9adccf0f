"""Collection of the tasks of one split: candidates are tried in batches until enough faults are proven."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from engine.datasets.curation.candidates import Candidate, CandidateQueue
from engine.datasets.curation.combination import Combiner, combine, problem_of
from engine.datasets.curation.injected import DetectedFault, make_row
from engine.datasets.curation.measurements import NOT_KEPT, Trial
from engine.datasets.curation.trials import Curation, despite_host, try_candidate
from engine.datasets.curation.written.faults import prompt, write_fault
from engine.datasets.curation.written.functions import REASONS, is_unwritten
from engine.datasets.funnel import Stages, reporting
from engine.errors import HostError
from engine.threads import gather_or_cancel, in_thread
from engine.types import TaskRow

_FAULTS, _WRITTEN, _COMBINED = "faults", "written", "combined"
STAGES: Stages = (
    (_FAULTS, frozenset()),
    ("tried", frozenset({"waiting", "not_tried", "enough_tries"})),
    (_WRITTEN, REASONS),
    ("tests run", NOT_KEPT),
    ("noticed", frozenset({"unnoticed", "odd_outcome", "earlier"})),
    ("stable", frozenset({"unstable"})),
    ("mended", frozenset({"not_mended"})),
    (_COMBINED, frozenset({"uncombined", "not_combined", "alone", "combination", "inert"})),
    ("wanted", frozenset({"not_wanted"})),
)
"""Stages of the funnel. Faults by a model begin as ``functions`` and may end before ``written``; only where
tasks have several faults, they are ``combined``."""
_BATCH_PER_WORKER = 8


def stages(*, with_writer: bool, are_combined: bool) -> Stages:
    """Return the stages of the funnel, each with the reasons of lost items."""
    left_out = {*(() if with_writer else (_WRITTEN,)), *(() if are_combined else (_COMBINED,))}
    first = "functions" if with_writer else _FAULTS
    return tuple(
        (first if name == _FAULTS else name, reasons) for name, reasons in STAGES if name not in left_out
    )


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
        combiner=Combiner(run.config.faults_per_task),
        tasks_before=run.funnel.tasks,
    )
    async with reporting(run.funnel, run.progress, f"{split} tasks", run.amounts):
        while len(collection.rows) < wanted and await collection.try_batch():
            pass
    is_short = len(collection.rows) < wanted
    for detected in collection.combiner.waiting:
        run.funnel.undecided["uncombined"] -= 1
        collection.lose(detected.candidate, "alone" if is_short else "not_combined")
    if is_short:
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
    combiner: Combiner
    tasks_before: int
    """Tasks of earlier splits."""
    rows: list[TaskRow] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)
    _proven: int = 0
    """Tasks of this split that can be made of proven faults, as far as known."""

    async def try_batch(self) -> bool:
        """Try the next candidates and make tasks of proven faults; return False if no candidate is left."""
        config = self.run.config
        missing = config.faults_per_task * (self.wanted - len(self.rows))
        batch = self.queue.take(min(_BATCH_PER_WORKER * config.workers, 2 * missing))
        first = self.run.funnel.tried
        proven = await self._prove(
            batch, lambda number, candidate, trial: self._detected(candidate, trial, first + number)
        )
        for detected in proven:
            self.queue.keep(detected.candidate)
        if config.faults_per_task > 1:
            proven = await self._combine(proven)
        for detected in proven:
            if len(self.rows) < self.wanted:
                await self._make_task(detected)
        return bool(batch)

    async def _prove(
        self, candidates: Sequence[Candidate], judge: Callable[[int, Candidate, Trial], bool]
    ) -> list[DetectedFault]:
        """Try candidates; return those whose number, fault and trial ``judge`` accepts, in their order."""
        kept = [number for number, item in enumerate(candidates) if self._was_tried(item)]
        new = [number for number in range(len(candidates)) if number not in kept]
        detected: dict[int, DetectedFault] = {}

        async def prove(number: int) -> None:
            async with self.permits:
                candidate, trial = await self._try(candidates[number])
            self.run.funnel.trial_seconds += trial.seconds
            if judge(number, candidate, trial):
                detected[number] = DetectedFault.of(candidate, trial)

        # Kept trials count before the first report of this attempt: an earlier one has reported them.
        await gather_or_cancel(prove(number) for number in kept)
        self.run.funnel.is_live |= bool(new)
        await gather_or_cancel(prove(number) for number in new)
        return [fault for _, fault in sorted(detected.items())]

    def _was_tried(self, candidate: Candidate) -> bool:
        """Return whether an earlier curation tried a candidate, or asked the writer for its fault."""
        if self.run.writer is not None and is_unwritten(candidate):
            return self.run.writer.has_answer(partial(prompt, candidate, ""), seed=self.run.seed)
        return self.run.kept_trial(candidate) is not None

    async def _try(self, candidate: Candidate) -> tuple[Candidate, Trial]:
        """Return a candidate, with its fault by the writer where it has none yet, and its trial."""
        try_fault = partial(try_candidate, self.run)
        if self.run.writer is not None and is_unwritten(candidate):
            return await write_fault(candidate, self.run.writer, try_fault, seed=self.run.seed)
        return candidate, await try_fault(candidate)

    def _detected(self, candidate: Candidate, trial: Trial, position: int) -> bool:
        """Count a tried candidate; return whether the tests detect its fault every time."""
        self.run.funnel.tried += 1
        if trial.problem:
            self.lose(candidate, trial.problem, detail=trial.detail, position=position)
        elif self.combiner.size > 1:
            self.run.funnel.undecided["uncombined"] += 1
        else:
            self._count_proven(1)
        return not trial.problem

    async def _combine(self, detected: Sequence[DetectedFault]) -> list[DetectedFault]:
        """Return proven combinations of these faults and of those that wait."""
        groups = [group for fault in detected if (group := self.combiner.add(fault))]
        first = self.run.funnel.tried

        def judge(number: int, _: Candidate, trial: Trial) -> bool:
            group = groups[number]
            self.run.funnel.undecided["uncombined"] -= len(group)
            problem, detail = problem_of(group, trial), f"{trial.problem} {trial.detail}"
            for fault in group if problem else ():
                self.lose(fault.candidate, problem, detail=detail, position=first + number)
            if not problem:
                self._count_proven(1)
            return not problem

        return await self._prove([combine(group) for group in groups], judge)

    async def _make_task(self, detected: DetectedFault) -> None:
        run = self.run
        make = partial(make_row, detected, self.split, self._names, hint=run.config.hint, home=run.home)
        row = await despite_host(run, partial(in_thread, make))
        if isinstance(row, HostError):
            self._count_proven(-1)
            self.lose(detected.candidate, "machine", detail=str(row))
            return
        self.rows.append(row)
        await in_thread(partial(run.funnel.measure, run.home, row.task.image.removeprefix("local:")))

    def _count_proven(self, change: int) -> None:
        self._proven += change
        self.run.funnel.proven += change * self.combiner.size
        self.run.funnel.tasks = self.tasks_before + min(self._proven, self.wanted)

    def lose(self, candidate: Candidate, reason: str, *, detail: str = "", position: int = 0) -> None:
        """Count the faults of a candidate that becomes no task."""
        for fault in candidate.faults:
            # Not the original lines: a task may have its fault there, too.
            change = "" if is_unwritten(candidate) else f"{fault.kind}: {fault.mutated.strip()}"
            self.run.funnel.lose(
                reason,
                f"{candidate.path}:{fault.line} {fault.function}",
                origin=candidate.baseline.source.spec,
                detail=f"{change}\n{detail}",
                position=position,
            )
