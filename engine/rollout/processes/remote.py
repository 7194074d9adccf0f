"""A rollout that runs in a worker, as the run's process sees it."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import structlog

from engine.agent.replay import FinishedTurn
from engine.errors import RunEndingError
from engine.inference.base import Policy
from engine.rollout.processes.connection import WorkerConnection, WorkerLostError
from engine.rollout.processes.messages import (
    Acted,
    Cancel,
    Continue,
    Ended,
    Entered,
    Finished,
    Interrupt,
    News,
    Released,
    Started,
    Stepped,
)
from engine.rollout.processes.workers import RolloutWorkers
from engine.rollout.recorded import RecordedTurns
from engine.rollout.rollout import Rollout, RolloutParts
from engine.types import RolloutKey, RolloutPhase, TaskRow, Trajectory

log = structlog.get_logger(__name__)
_numbers = itertools.count()


@dataclass(slots=True, kw_only=True, eq=False)
class RemoteRollout:
    """A rollout in a worker, with the interface of ``engine.rollout.rollout.Rollout``.

    It waits here for its place, and runs there. When its worker is lost it starts anew in another one, with
    the same seeds.
    """

    parts: RolloutParts
    parts_number: int
    key: RolloutKey
    row: TaskRow
    workers: RolloutWorkers
    recorded: RecordedTurns | None = None
    """Reads the turns of an earlier attempt, which are repeated first; None begins anew."""
    _began: float = field(init=False, default=0.0)
    _queued: float = field(init=False, default=0.0)
    """Time spent waiting for a place, seconds."""
    _cost: float | None = field(init=False, default=None)
    """US dollars of all attempts so far; None where no price is known."""
    _recorded_cost: float = field(init=False, default=0.0)
    """US dollars of the turns that an earlier attempt of the run recorded."""
    _is_acting: bool = field(init=False, default=False)
    _is_graded: bool = field(init=False, default=False)
    _announced: bool = field(init=False, default=False)
    """Whether its start was reported, and no end yet."""
    _worker: WorkerConnection | None = field(init=False, default=None)
    _number: int = field(init=False, default=-1)
    """Number of the current try in its worker."""
    _trajectory: Trajectory | None = field(init=False, default=None)
    _continuing: asyncio.Task[None] | None = field(init=False, default=None)

    @property
    def policy(self) -> Policy:
        """Return the policy that answers it."""
        return self.parts.policy

    @property
    def waited(self) -> float:
        """Return the time that it has waited for the policy's engines, seconds."""
        return self.policy.waited_seconds(self.key)

    async def run(self) -> Trajectory:
        """Produce the trajectory, as ``Rollout.run``."""
        self._began = time.monotonic()
        try:
            while True:
                await self._take_place()
                turns = await asyncio.to_thread(self.recorded) if self.recorded is not None else ()
                worker = await self.workers.choose()
                while not self.parts.gate.is_set():  # all that wait would choose the same worker
                    await self.parts.gate.wait()
                    worker = await self.workers.choose()
                try:
                    return await self._follow(worker, turns if self.recorded is not None else ())
                except WorkerLostError as error:
                    log.warning("rollout_starts_anew", key=self.key, lost=str(error))
        except (asyncio.CancelledError, RunEndingError) as ending:
            if self._announced:  # by a worker that was lost, or it would have reported the end
                unfinished = Rollout(parts=self.parts, key=self.key, row=self.row).cancelled(ending)
                await self.parts.observer.trajectory_finished(self._completed(unfinished))
            raise
        finally:
            self._leave_place()
            self.parts.observer.phase_changed(self.key, None)

    def restart(self) -> None:
        """Interrupt an attempt in progress; the next one waits for the gate and repeats nothing."""
        self.recorded = None
        if not self._is_graded:
            self._recorded_cost = 0.0
        if self._worker is not None:
            self._worker.send(Interrupt(self._number))
            self._continuing = asyncio.create_task(self._continue(self._worker, self._number))

    async def _continue(self, worker: WorkerConnection, number: int) -> None:
        await self.parts.gate.wait()
        worker.send(Continue(number))

    async def _take_place(self) -> None:
        self._leave_place()
        self.parts.observer.phase_changed(self.key, RolloutPhase.PLACE)
        began = time.monotonic()
        await self.parts.slots.acquire()
        self._is_acting = True
        self._queued += time.monotonic() - began

    def _leave_place(self) -> None:
        if self._is_acting:
            self.parts.slots.release()
        self._is_acting = self._is_graded = False

    async def _follow(self, worker: WorkerConnection, recorded: Sequence[FinishedTurn]) -> Trajectory:
        """Run it in a worker and pass its news on. Raises WorkerLostError, or what ended the rollout."""
        self._recorded_cost = math.fsum(turn.step.cost or 0.0 for turn in recorded)
        self._number = next(_numbers)
        worker.begin(self._number, self.parts_number, self, recorded=recorded)
        self._worker = worker
        ending: Ended | None = None
        cancelled: asyncio.CancelledError | None = None
        try:
            while ending is None:
                try:
                    ending = await self._told(worker, await worker.news(self._number))
                except asyncio.CancelledError as request:  # its end is news, too
                    cancelled = request
                    worker.send(Cancel(self._number, str(request)))
        except WorkerLostError:
            await self._release(worker)
            if cancelled is not None:
                raise cancelled from None
            raise
        finally:
            worker.leave(self._number, ended=ending is not None)
            self._worker = None
        if (error := cancelled or ending.error) is not None:
            raise error
        assert self._trajectory is not None
        return self._trajectory

    async def _told(self, worker: WorkerConnection, news: News) -> Ended | None:
        """Pass news on; return them where they are the last."""
        observer = self.parts.observer
        match news:
            case Started(sandbox_id):
                self._announced = True
                observer.trajectory_started(self.key, sandbox_id)
            case Entered(phase):
                observer.phase_changed(self.key, phase)
            case Stepped(turn):
                observer.step_finished(self.key, turn)
            case Acted():
                self.parts.slots.release()
                self._is_acting, self._is_graded = False, True
            case Released():
                await self._release(worker)
            case Finished(trajectory):
                self._announced = False
                self._trajectory = self._completed(trajectory)
                await observer.trajectory_finished(self._trajectory)
            case Ended():
                return news
        return None

    async def _release(self, worker: WorkerConnection) -> None:
        """Add what the attempt has cost and let the policy forget it."""
        try:
            await worker.settle(self._number)
        finally:
            if (cost := self.policy.spent_on(self.key)) is not None:
                self._cost = (self._cost or 0.0) + cost
            self.policy.release(self.key)

    def _completed(self, trajectory: Trajectory) -> Trajectory:
        """Return the trajectory with what its worker does not know."""
        timings = replace(
            trajectory.timings,
            queue=trajectory.timings.queue + self._queued,
            total=time.monotonic() - self._began,
        )
        cost = None if self._cost is None else self._cost + self._recorded_cost
        return replace(trajectory, timings=timings, cost=cost)
