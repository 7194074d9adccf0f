"""Rollout workers in threads of this process, and parts that are sent to them by value."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.config.rollout import AgentConfig
from engine.config.sandbox import SandboxConfig
from engine.inference.base import ChatPolicy, ChatRequest, ChatResponse
from engine.processes.guarded import Ending
from engine.processes.launchers import ProcessLauncher
from engine.processes.link import LOOPBACK
from engine.rollout import SweEnvironments
from engine.rollout.environments import RolloutGrader
from engine.rollout.processes import worker
from engine.rollout.processes.environments import WorkerGrader
from engine.rollout.processes.messages import RunServices
from engine.rollout.processes.services import WorkerPool
from engine.rollout.processes.workers import RolloutWorkers, WorkerSettings
from engine.sandbox.pool.pool import SandboxPool
from engine.types import RolloutKey
from tests.builders.rollout_builders import SOURCE, quick_agent
from tests.fakes.memory_sandbox import Command, MemoryBackend, silent


class TurnsPolicy(ChatPolicy):
    """Policy that returns scripted texts to each rollout in order, whatever its steps are."""

    name = "turns"
    version = 0
    max_context = None

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self.turns: Counter[RolloutKey] = Counter()

    async def respond(self, request: ChatRequest) -> ChatResponse:
        turn = self.turns[request.context.key]
        self.turns[request.context.key] += 1
        return ChatResponse(content=self._texts[min(turn, len(self._texts) - 1)])

    def release(self, key: RolloutKey) -> None:
        del self.turns[key]

    async def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings:
    """Settings of environments over sandboxes in memory (``EnvironmentSettings``)."""

    agent: AgentConfig
    sandbox: SandboxConfig = SandboxConfig()
    files: Mapping[str, bytes]
    command: Command = silent
    start_s: float = 0.0

    async def open(self, run: RunServices, *, num_workers: int) -> tuple[SweEnvironments, WorkerPool]:
        backend = MemoryBackend(self.files, command=self.command, start_s=self.start_s)
        pool = WorkerPool(backend, self.sandbox, run)
        environments = SweEnvironments(
            pool=pool,
            grader=WorkerGrader(run, None),
            agent=self.agent,
            sandbox=self.sandbox,
            run_id="r1",
        )
        return environments, pool


class ThreadWorker:
    """A worker in a thread (``engine.processes.guarded.Process``)."""

    _twin: socket.socket
    _thread: threading.Thread

    def start(self, command: Sequence[str], environment: Mapping[str, str], **_: Any) -> None:  # noqa: ARG002
        self._thread = threading.Thread(target=self._run, args=(dict(environment),), daemon=True)
        self._thread.start()

    def reserve(self, timeout_s: float) -> tuple[str, int]:
        """Raise NotImplementedError: workers do not listen."""
        raise NotImplementedError

    def terminate(self) -> None:
        self.kill()

    def _run(self, variables: dict[str, str]) -> None:
        connection = worker.connect(variables)
        with socket.socket(fileno=os.dup(connection.fileno())) as self._twin:
            asyncio.run(worker.serve_connection(connection))

    def sever(self) -> None:
        """End the connection, as the death of a worker process would."""
        self._twin.shutdown(socket.SHUT_RDWR)

    def ending(self) -> Ending | None:
        return None if self._thread.is_alive() else Ending("by itself", is_lost=False)

    def kill(self) -> None:
        with contextlib.suppress(AttributeError, OSError):  # not connected yet, or ended
            self.sever()
        self._thread.join()


class ThreadWorkers:
    """Launcher of workers in threads of this process (``ProcessLauncher``)."""

    isolates_devices = False

    def __init__(self) -> None:
        self.started: list[ThreadWorker] = []

    def open(self) -> None:
        """Do nothing."""

    def host(self) -> str:
        return LOOPBACK

    def create(self, number: int) -> ThreadWorker:
        self.started.append(ThreadWorker())
        return self.started[-1]

    def close(self) -> None:
        """Do nothing."""


@contextlib.asynccontextmanager
async def opened_workers(
    pool: SandboxPool,
    grader: RolloutGrader,
    *,
    count: int = 2,
    agent: AgentConfig | None = None,
    launcher: ProcessLauncher | None = None,
    **changes: Any,
) -> AsyncIterator[RolloutWorkers]:
    """Yield workers with sandboxes in memory that share the pool's places and the grader."""
    files = {"/testbed/pkg/m.py": SOURCE.encode()}
    settings: dict[str, Any] = {
        "environments": MemorySettings(agent=agent or quick_agent(), files=files),
        **changes,
    }
    workers = RolloutWorkers(
        WorkerSettings(
            count=count, launcher=launcher or ThreadWorkers(), pool=pool, grader=grader, **settings
        )
    )
    try:
        await workers.open()
        yield workers
    finally:
        await workers.close()
