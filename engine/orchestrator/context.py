"""Context of a run of any kind: identity, folders, events and control."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self, TypeVar

import structlog

from engine.errors import FencedError, SpendLimitError, TrainyardError
from engine.events.curation import CurationFunnel
from engine.events.delivery.control import Control
from engine.events.delivery.sink import EventSink
from engine.events.types import Alert, RunPaused, RunProgress, RunResumed
from engine.orchestrator.loop_probe import LoopProbe
from engine.orchestrator.rollout_counts import RolloutCounts

log = structlog.get_logger("orchestrator")
POLL_S = 0.1
CANCEL_S = 4.0
"""Maximum time cancelled work may take to close its sandboxes before the run ends without it, seconds."""
REPORT_EVERY_S = 5.0
"""Interval between reports of a phase's progress, seconds."""
FIRST_REPORT_S = 1.0
"""Time until the second report of a phase, seconds."""

T = TypeVar("T")
Severity = Literal["info", "warning", "error"]


class RunStopped(Exception):
    """A stop was requested; the message names its origin. Not an error: the run ends as ``stopped``."""


class DeliveryError(TrainyardError):
    """The run's events can no longer be delivered, so it must end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """Result of a run, with its headline numbers."""

    state: Literal["succeeded", "failed", "stopped"]
    reason: str = ""
    summary: dict[str, float | int | str | None] = field(default_factory=dict)

    @classmethod
    def of_stop(
        cls,
        stop: RunStopped | SpendLimitError,
        summary: Mapping[str, float | int | str | None] = MappingProxyType({}),
    ) -> Self:
        """Return the result of a run that was stopped; its summary names a spend limit as the reason."""
        by = {"stopped_by": "spend_limit"} if isinstance(stop, SpendLimitError) else {}
        return cls(state="stopped", reason=str(stop), summary={**summary, **by})


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
    """Resources to release before the terminal event is written."""
    is_relaunched: bool = False
    """Whether another attempt is started when this one ends without a terminal event."""
    probe: LoopProbe = field(default_factory=LoopProbe)
    """Probe that measures the event loop while the run is performed."""
    rollouts: RolloutCounts = field(default_factory=RolloutCounts)
    """Counts of this attempt's rollouts."""
    pace: Pace = field(default_factory=lambda: Pace())

    def alert(
        self,
        severity: Severity,
        code: str,
        message: str,
        iteration: int | None = None,
        *,
        task_ids: Sequence[str] = (),
    ) -> None:
        """Report a condition that a person should inspect, with its tasks."""
        self.sink.emit(
            Alert, severity=severity, code=code, message=message, iteration=iteration, task_ids=list(task_ids)
        )

    def progress(
        self,
        message: str,
        done: int,
        total: int,
        *,
        is_whole: bool = False,
        funnel: CurationFunnel | None = None,
    ) -> None:
        """Report the progress of a phase without iterations.

        Args:
            message: the phase.
            done, total: amount of its work.
            is_whole: it is the run's only phase, so that the run's time left can be estimated.
            funnel: state of a curation.
        """
        left = self.pace.seconds_left(done, total) if is_whole else None
        self.sink.emit(RunProgress, message=message, done=done, total=total, seconds_left=left, funnel=funnel)

    def notice(self) -> Callable[[str], None]:
        """Return a callback that reports the reason for a wait; an empty text reports its end.

        The callback raises as ``check`` does, and may be called from any thread.
        """
        reported: list[str] = []

        def report(text: str) -> None:
            self.check()
            if reported != [text]:
                reported[:] = [text]
                self.progress(text, 0, 0)

        return report

    @property
    def must_end(self) -> bool:
        """Return whether ``check`` would raise; for work in other threads."""
        return self.control.desired() == "stop" or bool(self.control.fence_reason or self.control.failure)

    def check(self) -> None:
        """Raise the reason to end the attempt, if any: FencedError, DeliveryError or RunStopped."""
        if self.control.fence_reason:
            raise FencedError(self.control.fence_reason)
        if self.control.failure:
            raise DeliveryError(self.control.failure)
        if self.control.desired() == "stop":
            raise RunStopped(self.control.stop_reason)

    async def safe_point(self) -> None:
        """Acknowledge a pause and wait until it is over; called where nothing is in flight."""
        self.check()
        if self.control.desired() != "pause":
            return
        await asyncio.to_thread(self.sink.emit, RunPaused)
        while self.control.desired() == "pause":
            await asyncio.sleep(POLL_S)
            self.check()
        self.check()
        self.pace.restart()
        self.sink.emit(RunResumed)

    def ends_after_pause(self) -> bool:
        """Wait out a requested pause, then return ``must_end``. Blocks: not for the event loop's thread."""
        if self.control.desired() == "pause" and not self.must_end:
            self.sink.emit(RunPaused)
            while self.control.desired() == "pause" and not self.must_end:
                time.sleep(POLL_S)
            if not self.must_end:
                self.sink.emit(RunResumed)
        return self.must_end

    async def interruptible(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work``; cancel it as soon as the attempt must end. Raises the same errors as ``check``."""
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
                if task.done() and not task.cancelled() and (error := task.exception()):
                    log.warning("cancelled_work_failed", error=str(error))


@asynccontextmanager
async def repeating(report: Callable[[], None]) -> AsyncIterator[None]:
    """Call ``report`` at intervals during the body; raise its error after the body."""

    async def repeat() -> None:
        await asyncio.sleep(min(FIRST_REPORT_S, REPORT_EVERY_S))
        while True:
            report()
            await asyncio.sleep(REPORT_EVERY_S)

    task = asyncio.create_task(repeat())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.result()


class Pace:
    """Rate of an attempt's work since its start or its last pause."""

    def __init__(self) -> None:
        self._start: tuple[float, int] | None = None
        """Time and amount of work done at the first measurement."""

    def restart(self) -> None:
        """Forget the measurements."""
        self._start = None

    def seconds_left(self, done: int, total: int) -> float | None:
        """Return the time left, estimated from the first and this measurement, seconds; None if unknown."""
        now = time.monotonic()
        began, first = self._start = self._start or (now, done)
        return (now - began) / (done - first) * (total - done) if first < done < total else None
