"""Monitoring of replicas: metrics, events, alerts, and detection of engines that fail while idle."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

import structlog

from engine.errors import TrainyardError, describe_error
from engine.events.delivery.sink import EventSink
from engine.events.engines import MAX_DETAIL, EngineRecord, EnginesReported
from engine.events.types import Alert
from engine.inference.vllm.admission import Admission
from engine.inference.vllm.replicas import Replica

POLL_S = 2.0
"""Interval between polls of every replica, seconds."""
REPORT_S = 5.0
"""Minimum interval between events without a change of state, seconds."""
_GATHER_S = 0.05
"""Time over which changes of state are combined into one event, seconds."""
_METRICS_S = 10.0
"""Maximum time of one poll, seconds."""
_MISSES = 3
"""Consecutive unanswered polls after which a replica has failed."""

log = structlog.get_logger("engines")
Fail = Callable[[Replica, str], None]


@dataclass(slots=True)
class _Totals:
    """Sums since the last ``take_metrics``."""

    polls: int = 0
    running: float = 0.0
    waiting: float = 0.0
    kv_use: float = 0.0
    tokens: int = 0
    busy_s: float = 0.0
    restarts: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0


class Monitor:
    """Monitor that polls replicas, reports them as events and notifies the admission of changes.

    Args:
        replicas: all replicas of the policy.
        admission: assigns conversations to them.
        sink: receives the events; None reports nothing.
    """

    iteration: int | None = None
    """Iteration of the latest request."""

    def __init__(
        self,
        replicas: Sequence[Replica],
        admission: Admission,
        *,
        sink: EventSink | None,
    ) -> None:
        self._replicas = replicas
        self._admission = admission
        self._sink = sink
        self._watching: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reported_at = 0.0
        self._last: list[EngineRecord] = []
        self._misses: dict[Replica, int] = {}
        self._totals, self._before = _Totals(), _Totals()
        self._in_flight = 0
        self._busy_since = 0.0

    def start(self, fail: Fail) -> None:
        """Start polling and report the initial state.

        Args:
            fail: takes a replica out of service, with the reason.
        """
        self.changed()
        self._watching = asyncio.ensure_future(self._watch(fail))

    async def close(self) -> None:
        """Stop watching; report the last state."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
            self._report()

    # --- notifications -----------------------------------------------------------------------------

    def changed(self) -> None:
        """Handle a change of a replica's state."""
        self._admission.admit()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_GATHER_S, self._report)

    def lost(self, reason: str) -> None:
        """Fail the requests that wait for a replica: none is left."""
        self._admission.lose(reason)

    def alert(self, severity: Literal["info", "warning", "error"], code: str, message: str) -> None:
        """Report a condition that needs attention."""
        log.warning(code, message=message)
        self._emit(Alert, severity=severity, code=code, message=message, iteration=self.iteration)

    def request_began(self, iteration: int) -> None:
        """Count a request."""
        self.iteration = iteration
        if not self._in_flight:
            self._busy_since = time.monotonic()
        self._in_flight += 1

    def request_ended(self, tokens: int) -> None:
        """Count a request's end.

        Args:
            tokens: number of sampled tokens.
        """
        self._totals.tokens += tokens
        self._in_flight -= 1
        if not self._in_flight:
            self._totals.busy_s += time.monotonic() - self._busy_since

    async def take_metrics(self) -> dict[str, float]:
        """Return an iteration's metrics: means and rates since the last call.

        Means are over polls with requests in flight, and left out without any.
        """
        await asyncio.gather(*(self._poll(replica) for replica in self._replicas if replica.is_ready))
        if self._in_flight:
            now = time.monotonic()
            self._totals.busy_s += now - self._busy_since
            self._busy_since = now
        sums, before = self._totals, self._before
        after = _Totals(
            restarts=sum(replica.restarts for replica in self._replicas),
            prefix_queries=sum(replica.load.prefix_queries for replica in self._replicas),
            prefix_hits=sum(replica.load.prefix_hits for replica in self._replicas),
        )
        self._totals, self._before = _Totals(), after
        queries = after.prefix_queries - before.prefix_queries
        means = {"kv_use": sums.kv_use, "running": sums.running, "waiting": sums.waiting}
        return {f"engine/{name}": total / sums.polls for name, total in means.items() if sums.polls} | {
            "engine/prefix_hit_rate": (after.prefix_hits - before.prefix_hits) / max(queries, 1),
            "engine/tokens_per_s": sums.tokens / sums.busy_s if sums.busy_s else 0.0,
            "engine/restarts": float(after.restarts - before.restarts),
            "time/engine_busy": sums.busy_s,
        }

    # --- background --------------------------------------------------------------------------------

    async def _watch(self, fail: Fail) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            try:
                await self._poll_all(fail)
            except Exception as error:  # polling must survive any error
                log.error("engine_watch_failed", error=describe_error(error))

    async def _poll_all(self, fail: Fail) -> None:
        ready = [(replica, replica.incarnation) for replica in self._replicas if replica.is_ready]
        await asyncio.gather(*(self._poll(replica) for replica, _ in ready))
        for replica, incarnation in ready:
            reason = self._complaint(replica)
            if reason and replica.is_ready and replica.incarnation == incarnation:
                fail(replica, reason)
        self._sample()
        self._admission.forget_idle()
        if time.monotonic() - self._reported_at >= REPORT_S and self._records() != self._last:
            self._report()

    async def _poll(self, replica: Replica) -> None:
        try:
            async with asyncio.timeout(_METRICS_S):
                replica.load.observe(await replica.client.metrics())
            self._misses[replica] = 0
        except (TrainyardError, OSError, TimeoutError):
            self._misses[replica] = self._misses.get(replica, 0) + 1

    def _complaint(self, replica: Replica) -> str:
        """Return the failure of a serving replica; empty without one."""
        if replica.server is not None and not replica.server.is_alive():
            return "its process has ended"
        if self._misses.get(replica, 0) >= _MISSES:
            self._misses[replica] = 0
            return f"it did not answer {_MISSES} times in a row"
        return ""

    def _sample(self) -> None:
        loads = [r.load.latest for r in self._replicas if r.is_ready and r.load.latest is not None]
        if loads and self._in_flight:
            self._totals.polls += 1
            self._totals.kv_use += fmean(load.kv_use for load in loads)
            self._totals.running += sum(load.running for load in loads)
            self._totals.waiting += sum(load.waiting for load in loads)

    def _records(self) -> list[EngineRecord]:
        return [_record(replica) for replica in self._replicas]

    def _report(self) -> None:
        self._timer = None
        self._reported_at, self._last = time.monotonic(), self._records()
        self._emit(
            EnginesReported,
            iteration=self.iteration,
            replicas=[record.model_dump() for record in self._last],
            queued=self._admission.num_waiting,
        )

    def _emit(self, event: type[Alert] | type[EnginesReported], **fields: object) -> None:
        """Emit an event; log failures: a timer has no caller, and the run notices a broken spool itself."""
        if self._sink is None:
            return
        try:
            self._sink.emit(event, **fields)
        except (OSError, TrainyardError) as error:
            log.warning("engines_not_reported", why=str(error))


def _record(replica: Replica) -> EngineRecord:
    load = replica.load
    latest = load.latest if replica.is_ready else None
    return EngineRecord(
        name=replica.name,
        state=replica.state.value,
        version=replica.version,
        running=latest.running if latest else 0,
        waiting=latest.waiting if latest else 0,
        kv_use=round(latest.kv_use, 4) if latest else 0.0,
        prefix_hit_rate=round(load.prefix_hit_rate, 4),
        tokens_per_s=round(load.tokens_per_s, 1) if latest else 0.0,
        restarts=replica.restarts,
        detail=replica.detail[:MAX_DETAIL],
    )
