"""Program of a rollout worker: ``python -m engine.rollout.processes``, started by ``workers``.

It runs the rollouts that it is told, each as in the run's own process (``engine.rollout.rollout``), with its
own sandboxes. It ends with its connection: what is in flight then is cancelled and its sandboxes are closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any, Literal

import structlog

from engine.agent.prompts import load_prompt
from engine.agent.replay import FinishedTurn
from engine.environments.base import EnvironmentFactory
from engine.garbage import collect_rarely
from engine.redaction import RedactingStream, add_secrets, log_to
from engine.rollout.observer import GuardedObserver
from engine.rollout.processes.messages import (
    Acted,
    Alive,
    Answer,
    Begin,
    Cancel,
    Continue,
    Ended,
    Entered,
    Finished,
    Interrupt,
    NewParts,
    News,
    Prepare,
    Report,
    Settings,
    Started,
    Stepped,
    Waited,
    portable,
)
from engine.rollout.processes.services import (
    LiveRollouts,
    RunChatPolicy,
    RunProcess,
    RunTokenPolicy,
    share,
)
from engine.rollout.processes.stream import MessageStream, StreamEndedError
from engine.rollout.rollout import Rollout, RolloutParts, open_gate
from engine.types import RolloutKey, RolloutPhase, Trajectory

ADDRESS, KEY, NUMBER = "TRAINYARD_WORKER_ADDRESS", "TRAINYARD_WORKER_KEY", "TRAINYARD_WORKER_NUMBER"
"""Environment variables: ``HOST:PORT`` of the run's process, the common key, the worker's number."""
BEAT_S = 1.0
"""Interval of signs of life, seconds."""
END_S = 4.0
"""Time in which rollouts must close their sandboxes once the run's process is gone, seconds."""
EXIT_MEMORY = 5
"""Exit code of a worker that is larger than it may be."""
log = structlog.get_logger("rollout-worker")


def serve(environment: Mapping[str, str]) -> int:
    """Run the worker until its run's process ends the connection; return the exit code."""
    with contextlib.redirect_stderr(RedactingStream(sys.stderr)):
        log_to(sys.stderr)
        return asyncio.run(serve_connection(connect(environment)))


def connect(environment: Mapping[str, str]) -> Connection:
    """Connect to the run's process."""
    host, _, port = environment[ADDRESS].rpartition(":")
    connection = Client((host, int(port)), authkey=environment[KEY].encode())
    assert isinstance(connection, Connection)
    connection.send((int(environment[NUMBER]), os.getpid()))
    return connection


async def serve_connection(connection: Connection) -> int:
    """Run a worker until the other side ends the connection; return its exit code."""
    stream = await MessageStream.over(connection)
    with contextlib.suppress(StreamEndedError):
        await _Worker(stream).run()
    return 0


class _Reporter:
    """Observer and place of one rollout, as the run's process knows them."""

    def __init__(self, run: RunProcess, rollout: int) -> None:
        self._run, self._rollout = run, rollout

    def tell(self, news: News) -> None:
        """Report on the rollout."""
        self._run.tell(Report(self._rollout, news))

    def trajectory_started(self, key: RolloutKey, sandbox_id: str) -> None:  # noqa: ARG002
        """Report the start of an attempt."""
        self.tell(Started(sandbox_id))

    def phase_changed(self, key: RolloutKey, phase: RolloutPhase | None) -> None:  # noqa: ARG002
        """Report the start of a phase; the last one's end is that of the rollout."""
        if phase is not None:
            self.tell(Entered(phase))

    def step_finished(self, key: RolloutKey, turn: FinishedTurn) -> None:  # noqa: ARG002
        """Report a step."""
        self.tell(Stepped(turn))

    async def trajectory_finished(self, trajectory: Trajectory) -> None:
        """Report the terminal record."""
        self.tell(Finished(trajectory))


class _Place(asyncio.Semaphore):
    """The place that the run's process has given to a rollout."""

    def __init__(self, reporter: _Reporter) -> None:
        super().__init__(1)
        self._reporter = reporter

    async def acquire(self) -> Literal[True]:
        """Return at once."""
        return True

    def release(self) -> None:
        """Report that the place is free."""
        self._reporter.tell(Acted())


class _Worker:
    """The worker's side of the connection.

    Args:
        stream: messages of the run's process.
    """

    def __init__(self, stream: MessageStream) -> None:
        self._stream = stream
        self._run = RunProcess(stream)
        self._live = LiveRollouts()
        self._parts: dict[int, Callable[..., RolloutParts]] = {}
        self._rollouts: dict[int, tuple[Rollout, asyncio.Event, asyncio.Task[Trajectory]]] = {}
        self._environments: EnvironmentFactory
        self._pool: Any = None
        self._num_workers = 1
        self._preparing: asyncio.Task[None] | None = None
        self._memory_mb = 0

    async def run(self) -> None:
        """Do what the messages say until they end. Raises StreamEndedError."""
        first, *messages = await self._stream.receive()
        await self._open(first)
        beating = asyncio.create_task(self._beat())
        try:
            while True:
                for message in messages:
                    self._handle(message)
                messages = await self._stream.receive()
        finally:
            beating.cancel()
            await self._close()

    async def _open(self, settings: Settings) -> None:
        add_secrets(settings.secrets)
        self._num_workers, self._memory_mb = settings.num_workers, settings.memory_mb
        opened = await settings.environments.open(self._run, num_workers=settings.num_workers)
        self._environments, self._pool = opened
        collect_rarely()
        self._stream.send(Alive())

    async def _close(self) -> None:
        tasks = [task for _, _, task in self._rollouts.values()]
        for task in tasks:
            task.cancel("the run's process is gone")
        if tasks:
            await asyncio.wait(tasks, timeout=END_S)
        if self._pool is not None:
            await self._pool.close()

    async def _beat(self) -> None:
        while True:
            self._stream.send(Alive())
            if self._memory_mb and (used := resident_mb()) > self._memory_mb:
                log.error("rollout_worker_out_of_memory", used_mb=used, limit_mb=self._memory_mb)
                os._exit(EXIT_MEMORY)
            await asyncio.sleep(BEAT_S)

    def _handle(self, message: object) -> None:
        match message:
            case Answer():
                self._run.answered(message)
            case Begin():
                self._begin(message)
            case Waited(rollout, seconds) if rollout in self._rollouts:
                self._live.waited[rollout] = seconds
            case Cancel(rollout, reason) if rollout in self._rollouts:
                self._rollouts[rollout][2].cancel(reason)
            case Interrupt(rollout) if rollout in self._rollouts:
                running, gate, _ = self._rollouts[rollout]
                gate.clear()
                running.restart()
            case Continue(rollout) if rollout in self._rollouts:
                self._rollouts[rollout][1].set()
            case NewParts():
                self._parts[message.number] = self._opened(message)
            case Prepare(images) if self._pool is not None:
                preparation = self._pool.prepare(share(images, self._num_workers))
                self._preparing = asyncio.create_task(preparation)
            case _:
                pass  # of a rollout that has ended meanwhile

    def _opened(self, new: NewParts) -> Callable[..., RolloutParts]:
        environments = self._environments.for_agent(new.agent)
        kind = RunChatPolicy if new.policy.chat is None else RunTokenPolicy
        policy = new.policy.copy or kind(new.policy, new.number, self._run, self._live)
        return partial(
            RolloutParts,
            environments=environments,
            policy=policy,
            prompt=load_prompt(new.agent.prompt, new.agent.tool_format, environments.tools),
            agent=new.agent,
            sampling=new.sampling,
            seed=new.seed,
            retry_temperatures=new.retry_temperatures,
        )

    def _begin(self, begin: Begin) -> None:
        number, gate, reporter = begin.rollout, open_gate(), _Reporter(self._run, begin.rollout)
        parts = self._parts[begin.parts](
            observer=GuardedObserver(reporter), slots=_Place(reporter), gate=gate
        )
        self._live.numbers[begin.key] = number
        rollout = Rollout(parts=parts, key=begin.key, row=begin.row, recorded=lambda: begin.recorded)
        task = asyncio.create_task(rollout.run())
        self._rollouts[number] = rollout, gate, task
        task.add_done_callback(partial(self._ended, begin.key, number))

    def _ended(self, key: RolloutKey, number: int, task: asyncio.Task[Trajectory]) -> None:
        """Report the end of a rollout, also of one that was cancelled before it ran."""
        del self._rollouts[number]
        self._live.waited.pop(number, None)
        if self._live.numbers.get(key) == number:
            del self._live.numbers[key]
        failure = asyncio.CancelledError() if task.cancelled() else task.exception()
        self._run.tell(
            Report(number, Ended(portable(failure) if isinstance(failure, Exception) else failure))
        )


def resident_mb() -> int:
    """Return the resident size of this process, MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20
