"""Supervision of a run's rollout workers: each is started, watched, and started again when it is lost.

A rollout takes the worker with the fewest rollouts. What a lost worker had in flight starts anew elsewhere
(``remote``); the places of its sandboxes are given back, and what is left of them is removed.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import TypeVar
from weakref import WeakValueDictionary

import structlog

from engine.errors import TrainyardError, WorkersLostError, describe_error
from engine.inference.base import ChatPolicy, Policy, TokenPolicy
from engine.processes.guarded import Process, wait_until_ended
from engine.processes.launchers import ProcessLauncher, run_module
from engine.processes.link import Listener
from engine.redaction import redactor
from engine.rollout.environments import RolloutGrader
from engine.rollout.processes.connection import WorkerConnection
from engine.rollout.processes.messages import (
    EnvironmentSettings,
    NewParts,
    PolicySettings,
    Prepare,
    Settings,
)
from engine.rollout.processes.stream import MessageStream, StreamEndedError
from engine.rollout.processes.worker import ADDRESS, END_S, KEY, NUMBER
from engine.rollout.rollout import RolloutParts
from engine.sandbox.pool.pool import SandboxPool

START_S = 300.0
"""Maximum time until a started worker is ready, seconds."""
SILENT_S = 60.0
"""Time without a sign of life after which a worker is lost, seconds."""
MAX_LOSSES, WINDOW_S = 5, 600.0
"""Losses within this time, seconds, after which the run ends."""
_POLL_S = 0.2
_ALONE = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
"""Variables that keep numeric libraries from starting a thread for each core: workers compute little."""
log = structlog.get_logger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Settings of a run's rollout workers, and the parts of the run that they share."""

    count: int
    launcher: ProcessLauncher
    environments: EnvironmentSettings
    memory_mb: int = 0
    """Memory beyond which a worker ends itself, MiB; 0 sets no limit."""
    pool: SandboxPool | None = None
    grader: RolloutGrader | None = None
    run_id: str = ""
    on_loss: Callable[[str], None] = lambda _what: None
    """Told of every loss of a worker."""


@dataclass(slots=True)
class _Losses:
    """Losses of workers within the last ``WINDOW_S``."""

    times: deque[float] = field(default_factory=deque)

    def add(self, reason: str) -> None:
        """Count a loss. Raises WorkersLostError when there were too many."""
        now = time.monotonic()
        self.times.append(now)
        while now - self.times[0] > WINDOW_S:
            self.times.popleft()
        if len(self.times) > MAX_LOSSES:
            raise WorkersLostError(
                f"rollout workers were lost {len(self.times)} times within {WINDOW_S / 60:g} minutes; the "
                f"last time {reason}: see the log, or set rollout.workers to 1"
            )


class RolloutWorkers:
    """The rollout workers of a run; ``open`` starts them.

    Args:
        settings: what they are, and what they share.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._key = secrets.token_hex(32)
        self._listener: Listener | None = None
        self._waiting: dict[int, asyncio.Future[tuple[int, Connection]]] = {}
        """Workers that start, by number: process id and connection once they connect."""
        self._live: dict[int, WorkerConnection] = {}
        self._parts: list[NewParts] = []
        self._policies: WeakValueDictionary[int, Policy] = WeakValueDictionary()
        """Policy of each set of parts, while anybody else needs it."""
        self._losses = _Losses()
        self._failure: TrainyardError | None = None
        self._changed = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []
        self._processes: dict[int, Process] = {}

    async def open(self) -> None:
        """Start all workers and wait until they are ready.

        Raises:
            WorkersLostError: one does not start.
            PreflightError: the Ray cluster cannot be used.
        """
        await asyncio.to_thread(self._settings.launcher.open)
        host = await asyncio.to_thread(self._settings.launcher.host)
        self._listener = Listener(self._key.encode(), (host, 0))
        self._tasks.append(asyncio.create_task(self._accept(self._listener)))
        for number in range(self._settings.count):
            self._tasks.append(asyncio.create_task(self._keep(number)))
        async with self._changed:
            await self._changed.wait_for(lambda: self._failure or len(self._live) == self._settings.count)
        if self._failure is not None:
            raise self._failure

    def add_parts(self, parts: RolloutParts) -> int:
        """Tell all workers the parts of a scheduler's rollouts; return their number."""
        new = NewParts(
            number=len(self._parts),
            policy=_policy_settings(parts.policy),
            agent=parts.agent,
            sampling=parts.sampling,
            seed=parts.seed,
            retry_temperatures=parts.retry_temperatures,
        )
        self._parts.append(new)
        self._policies[new.number] = parts.policy
        for worker in self._live.values():
            worker.send(new)
        return new.number

    def prepare(self, images: Mapping[str, int]) -> None:
        """Let workers prepare for the next sandboxes; each prepares its share."""
        for worker in self._live.values():
            worker.send(Prepare(images))

    async def choose(self) -> WorkerConnection:
        """Return the worker with the fewest rollouts, once there is one. Raises WorkersLostError."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._failure or self._live)
        if self._failure is not None:
            raise self._failure
        return min(self._live.values(), key=lambda worker: worker.load)

    async def close(self) -> None:
        """End all workers; safe to call once ``open`` was."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for worker in self._live.values():
            await worker.close()
        processes, deadline = list(self._processes.values()), time.monotonic() + END_S + 1.0
        await asyncio.to_thread(wait_until_ended, processes, deadline)
        for process in processes:
            await asyncio.to_thread(process.kill)
        await asyncio.to_thread(self._settings.launcher.close)
        if self._listener is not None:
            self._listener.close()

    # --- supervision -------------------------------------------------------------------------------

    async def _accept(self, listener: Listener) -> None:
        """Hand new connections to those that wait for them."""
        while True:
            try:
                accepted = await asyncio.to_thread(listener.accept, 1.0)
            except OSError as error:  # too many open files, for one: workers that start go on waiting
                log.warning("rollout_worker_not_accepted", error=str(error))
                await asyncio.sleep(_POLL_S)
                continue
            if accepted is None:
                continue
            (number, pid), connection = accepted
            waiting = self._waiting.pop(number, None)
            if waiting is None or waiting.done():
                connection.close()
            else:
                waiting.set_result((pid, connection))

    async def _keep(self, number: int) -> None:
        """Keep a worker running until too many are lost."""
        try:
            worker = await self._start(number)
            while True:
                reason = await self._serve(number, worker)
                self._losses.add(reason)
                worker = await self._start_again(number)
        except TrainyardError as error:
            self._failure = self._failure or error
            await self._notify()
        except Exception as error:
            log.exception("rollout_worker_unsupervised", worker=number)
            self._failure = self._failure or WorkersLostError(describe_error(error))
            await self._notify()

    async def _start(self, number: int) -> WorkerConnection:
        """Start a worker and wait until it is ready. Raises WorkersLostError, PreflightError."""
        name = f"rollout worker {number}"
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        assert self._listener is not None
        variables = {ADDRESS: self._listener.address, KEY: self._key, NUMBER: str(number)}
        process = await asyncio.to_thread(self._settings.launcher.create, number)
        variables |= _ALONE
        await asyncio.to_thread(run_module, process, "engine.rollout.processes", environment=variables)
        self._processes[number] = process
        pid, connection = await self._unless_ended(waiting, process, name)
        stream = await MessageStream.over(connection)
        stream.send(self._first_message())
        await self._unless_ended(asyncio.ensure_future(stream.receive()), process, name)
        worker = WorkerConnection(
            stream,
            f"{name} (process {pid})",
            policies=self._policies,
            pool=self._settings.pool,
            grader=self._settings.grader,
        )
        log.info("rollout_worker_started", worker=number, process=pid)
        for parts in self._parts:
            worker.send(parts)
        self._live[number] = worker
        await self._notify()
        return worker

    async def _start_again(self, number: int) -> WorkerConnection:
        """Start a lost worker, again and again until too many are lost."""
        while True:
            try:
                return await self._start(number)
            except WorkersLostError as error:
                await asyncio.to_thread(self._processes[number].kill)
                self._losses.add(str(error))

    async def _unless_ended(self, wanted: asyncio.Future[T], process: Process, name: str) -> T:
        """Return a result that a starting worker brings. Raises WorkersLostError."""
        deadline = time.monotonic() + START_S
        while not wanted.done():
            await asyncio.wait((wanted,), timeout=_POLL_S)
            ending = await asyncio.to_thread(process.ending)
            if not wanted.done() and (ending is not None or time.monotonic() > deadline):
                wanted.cancel()
                how = f"it ended {ending.text}" if ending is not None else f"not ready within {START_S:g} s"
                raise WorkersLostError(f"{name} did not start: {how}; see the log for its reason")
        try:
            return wanted.result()
        except StreamEndedError:
            raise WorkersLostError(f"{name} did not start: it ended its connection") from None

    async def _serve(self, number: int, worker: WorkerConnection) -> str:
        """Serve a worker until it is lost; return what happened."""
        serving = asyncio.create_task(worker.serve())
        try:
            while not serving.done() and time.monotonic() - worker.seen <= SILENT_S:
                await asyncio.wait((serving,), timeout=1.0)
            is_silent = not serving.done()
        finally:
            serving.cancel()
            await asyncio.wait((serving,))
        if is_silent:
            reason = f"{worker.name} gave no sign of life for {SILENT_S:g} s"
        elif (error := serving.exception()) is not None:
            log.error("rollout_worker_not_understood", worker=number, exc_info=error)
            reason = f"{worker.name} sent what cannot be handled ({describe_error(error)})"
        else:
            reason = f"{worker.name} ended {await self._ending(number)}"
        load = worker.load
        log.error("rollout_worker_lost", worker=number, reason=reason, rollouts=load)
        del self._live[number]
        await asyncio.to_thread(self._processes[number].kill)
        await worker.lose()
        self._settings.on_loss(f"{reason}; its {load} rollouts start anew")
        await worker.close()
        if self._settings.pool is not None:
            await self._settings.pool.reap(run_id=self._settings.run_id)
        return reason

    async def _ending(self, number: int) -> str:
        """Return how a worker that has ended its connection has ended."""
        for _ in range(10):
            if (ending := await asyncio.to_thread(self._processes[number].ending)) is not None:
                return ending.text
            await asyncio.sleep(_POLL_S)
        return "its connection"

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _first_message(self) -> Settings:
        settings = self._settings
        return Settings(
            environments=settings.environments,
            num_workers=settings.count,
            secrets=redactor().secrets,
            memory_mb=settings.memory_mb,
        )


def _policy_settings(policy: Policy) -> PolicySettings:
    return PolicySettings(
        name=policy.name,
        version=policy.version,
        max_context=policy.max_context,
        chat=policy.chat if isinstance(policy, TokenPolicy) else None,
        sends_thinking=policy.sends_thinking if isinstance(policy, ChatPolicy) else True,
        copy=policy if policy.is_portable else None,
    )
