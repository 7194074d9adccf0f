"""Measurement of how long callbacks, or threads that hold the interpreter lock, block the event loop.

A task is due every ``INTERVAL_S``; its lateness is the time that everything else on the loop had to wait:
lease renewals, pool reports, watches, sandbox starts. A hold over several ticks counts once per tick, so a
percentile is the wait of a callback due at a random moment. A thread samples the stack of a late loop and
stores the running function.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

import structlog

log = structlog.get_logger("orchestrator")
INTERVAL_S = 0.01
NOTICED_S = 0.05
"""Minimum duration of a hold that is examined, seconds."""
LOGGED_MS = 100.0
"""99.9th percentile above which a report is logged, ms: twice that of a machine with a free core."""
_GROWTH = 1.05
"""Ratio of adjacent bucket bounds of the histogram."""
_SHORTEST_MS = 0.01


class LatenessHistogram:
    """Histogram of durations with buckets of equal ratio: percentiles are at most 5 % too high."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.maximum_ms = 0.0

    def add(self, milliseconds: float) -> None:
        """Count one duration."""
        self.maximum_ms = max(self.maximum_ms, milliseconds)
        self._counts[math.ceil(math.log(max(milliseconds, _SHORTEST_MS) / _SHORTEST_MS, _GROWTH))] += 1

    def percentile(self, share: float) -> float:
        """Return the smallest bound, ms, not exceeded by ``share`` of the durations; 0 without any."""
        target, counted = share * self._counts.total(), 0
        for bucket, count in sorted(self._counts.items()):
            counted += count
            if counted >= target:
                return min(_SHORTEST_MS * _GROWTH**bucket, self.maximum_ms)
        return 0.0

    def metrics(self) -> dict[str, float]:
        """Return ``loop/held_{p50,p99,p999,max}_ms``."""
        shares = {"p50": 0.5, "p99": 0.99, "p999": 0.999, "max": 1.0}
        return {f"loop/held_{name}_ms": self.percentile(share) for name, share in shares.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Longest hold of the event loop in an interval."""

    milliseconds: float
    phase: str
    """Phase of the run, e.g. ``update``; empty outside of every phase."""
    running: str
    """Function of the engine that held the loop; empty where the loop waited for another thread."""


class LoopProbe:
    """Probe of the running event loop; an async context manager."""

    def __init__(self) -> None:
        self._phase = ""
        self._due = 0.0
        self._seen: Counter[tuple[str, str]] = Counter()
        """Counts of phase and function sampled by the watching thread since the loop's last tick."""
        self._stopped = threading.Event()
        self.whole = LatenessHistogram()
        """Histogram since the probe began."""
        self._reset()

    async def __aenter__(self) -> LoopProbe:
        self._due = time.monotonic() + INTERVAL_S
        self._stopped.clear()
        self._watch = threading.Thread(
            target=self._watch_thread, args=(threading.get_ident(),), name="loop-probe", daemon=True
        )
        self._watch.start()
        self._task = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._stopped.set()
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._watch.join()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Set the name of the run's phase inside the block."""
        before, self._phase = self._phase, name
        try:
            yield
        finally:
            self._phase = before

    def report(self) -> dict[str, float]:
        """Return the metrics since the last report, log long holds, and start a new interval."""
        metrics, longest = self._histogram.metrics(), self._longest
        self._reset()
        if metrics["loop/held_p999_ms"] > LOGGED_MS:
            log.warning(
                "event_loop_held", **dataclasses.asdict(longest), p999_ms=metrics["loop/held_p999_ms"]
            )
        return metrics

    def _reset(self) -> None:
        self._histogram = LatenessHistogram()
        self._longest = Hold(milliseconds=0.0, phase="", running="")

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._due - time.monotonic())
            now = time.monotonic()
            self._note(1000 * (now - self._due))
            while self._due <= now:
                for histogram in (self._histogram, self.whole):
                    histogram.add(1000 * (now - self._due))
                self._due += INTERVAL_S

    def _note(self, milliseconds: float) -> None:
        seen, self._seen = self._seen, Counter()
        if milliseconds > self._longest.milliseconds:
            phase, running = max(list(seen), key=seen.__getitem__, default=(self._phase, ""))
            self._longest = Hold(milliseconds=milliseconds, phase=phase, running=running)

    def _watch_thread(self, loop_thread: int) -> None:
        while not self._stopped.wait(NOTICED_S / 2):
            if time.monotonic() - self._due > NOTICED_S:
                self._seen[self._phase, _running(sys._current_frames().get(loop_thread))] += 1


def _running(frame: FrameType | None) -> str:
    """Return the innermost function of the engine on a stack; empty when the loop itself waits."""
    if frame is None or frame.f_globals.get("__name__") == "selectors":
        return ""
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module.startswith("engine.") and module != "engine.run":
            return f"{module}.{frame.f_code.co_qualname}"
        frame = frame.f_back
    return ""
