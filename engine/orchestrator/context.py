"""What every kind of run gets: where it lives, where its events go, what people want of it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import structlog

from engine.errors import FencedError, TrainyardError
from engine.events.control import Control
from engine.events.sink import EventSink
from engine.events.types import Alert, RunPaused, RunProgress, RunResumed
from engine.orchestrator.loop_probe import LoopProbe

log = structlog.get_logger("orchestrator")
POLL_S = 0.1
CANCEL_S = 4.0
"""How long cancelled work may take to close its sandboxes before the run ends without it."""

T = TypeVar("T")
Severity = Literal["info", "warning", "error"]


class RunStopped(Exception):
    """Somebody asked for a stop; the message says who. Not an error: the run ends as ``stopped``."""


class DeliveryError(TrainyardError):
    """The run's events cannot be delivered any more, so it must not go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a run ended, and the numbers people look for first."""

    state: Literal["succeeded", "failed", "stopped"]
    reason: str = ""
    summary: dict[str, float | int | str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """One attempt of one run."""

    run_id: str
    epoch: int
    run_dir: Path
    home: Path
    sink: EventSink
    control: Control
    closing: AsyncExitStack = field(default_factory=AsyncExitStack)
    """What must be freed before the terminal event is written."""
    probe: LoopProbe = field(default_factory=LoopProbe)
    """Measures the run's event loop while the run is performed."""

    def alert(
        self,
        severity: Severity,
        code: str,
        message: str,
        iteration: int | None = None,
        *,
        task_ids: Sequence[str] = (),
    ) -> None:
        """Tell people about something they should look at, and in which groups."""
        self.sink.emit(
            Alert, severity=severity, code=code, message=message, iteration=iteration, task_ids=list(task_ids)
        )

    def progress(self, message: str, done: int, total: int) -> None:
        """Say where a phase without iterations is."""
        self.sink.emit(RunProgress, message=message, done=done, total=total)

    @property
    def must_end(self) -> bool:
        """Whether ``check`` would raise; for work in other threads."""
        return self.control.desired() == "stop" or bool(self.control.fence_reason or self.control.failure)

    def check(self) -> None:
        """Raise what ends the attempt: FencedError, DeliveryError or RunStopped."""
        if self.control.fence_reason:
            raise FencedError(self.control.fence_reason)
        if self.control.failure:
            raise DeliveryError(self.control.failure)
        if self.control.desired() == "stop":
            raise RunStopped(self.control.stop_reason)

    async def safe_point(self) -> None:
        """Where nothing is in flight: acknowledge a pause and wait until it is over."""
        self.check()
        if self.control.desired() != "pause":
            return
        await asyncio.to_thread(self.sink.emit, RunPaused)
        while self.control.desired() == "pause":
            await asyncio.sleep(POLL_S)
            self.check()
        self.check()
        self.sink.emit(RunResumed)

    async def interruptible(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work``; cancel it as soon as the attempt must end. Raises what ``check`` raises."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=POLL_S)
                if not task.done():
                    self.check()
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=CANCEL_S)
                if task.done() and not task.cancelled() and (late := task.exception()):
                    log.warning("cancelled_work_failed", error=str(late))
