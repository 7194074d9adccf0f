"""The sandbox pool, through which every sandbox of a run is opened.

    open ─▶ refused image? ─▶ wait for a place ─▶ lease recorded ─▶ backend starts ─▶ in use ─▶ closed
              fail at once     lanes take turns     (durable)        failures feed the breaker

A place counts against ``max_live``, and until the sandbox has started also against ``max_starting``. Lanes (a
phase's rollouts, the grading) are served round-robin, each first in first out. Everything in a run that opens
sandboxes must share one pool, so that the budgets hold for the whole run.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

from engine.config.sandbox import SandboxConfig
from engine.errors import ImageError, SandboxError, SandboxQueueTimeoutError
from engine.events.delivery.sink import EventSink
from engine.sandbox.base import (
    Counting,
    Explaining,
    Population,
    Sandbox,
    SandboxBackend,
    SandboxSpec,
    Startup,
)
from engine.sandbox.pool.breaker import Breaker, ImageHealth
from engine.sandbox.pool.fair_queue import FairQueue, Ticket
from engine.sandbox.pool.histograms import Histograms
from engine.sandbox.pool.lease import Lease, one_line
from engine.sandbox.pool.report import PoolReporter
from engine.sandbox.registries import refused_registry

_MAX_REASONS = 10
"""Number of reasons for blocked starts in a snapshot, the most frequent first."""


class SandboxPool:
    """A ``SandboxBackend`` that admits, records and limits the sandboxes of another backend.

    Args:
        backend: backend that starts the sandboxes.
        config: the budgets.
        sink: receives leases, snapshots and alerts; None records nothing.
        breaker: rules for pauses; None for the default thresholds.
        images: rules for refusing images; None for the default thresholds.
    """

    def __init__(
        self,
        backend: SandboxBackend,
        config: SandboxConfig,
        *,
        sink: EventSink | None = None,
        breaker: Breaker | None = None,
        images: ImageHealth | None = None,
    ) -> None:
        self.name = backend.name
        self.backend = backend
        self.histograms = Histograms()
        self.starting = 0
        self.live = 0
        """Number of sandboxes started and not yet closed."""
        self._config = config
        self._breaker = breaker or Breaker()
        self._images = images or ImageHealth()
        self._queue = FairQueue()
        self._nodes: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._opened = 0
        self._orphans = 0
        self._prepared = 0
        self._admission: asyncio.Handle | None = None
        self._wake: asyncio.TimerHandle | None = None
        self._reporter = PoolReporter(sink, self._inspected)

    def open(self, spec: SandboxSpec) -> PooledSandbox:
        """Request a sandbox; see ``PooledSandbox`` for the errors on entering the returned context."""
        return PooledSandbox(self, spec)

    async def prepare(self, images: Mapping[str, int]) -> None:
        """Prepare the backend for the next requests, within the budget and without refused images."""
        now, room = time.monotonic(), self._config.max_live
        wanted: dict[str, int] = {}
        for image, count in images.items():
            if room and not self._refusal(image, now=now):
                wanted[image] = min(count, room)
                room -= wanted[image]
        self._prepared = sum(wanted.values())
        await self.backend.prepare(wanted)

    async def reap(self, *, run_id: str | None = None) -> int:
        """Remove the backend's orphans; they are counted in the snapshots."""
        removed = await self.backend.reap(run_id=run_id)
        self._orphans += removed
        if removed:
            self._reporter.touch()
        return removed

    async def close(self) -> None:
        """Report pending changes and close the backend; safe to call twice."""
        if self._wake is not None:
            self._wake.cancel()
        self._reporter.close()
        await self.backend.close()

    def observe(self, name: str, seconds: float) -> None:
        """Count a duration that the pool's users measure: ``exec``, ``grade``."""
        self.histograms.observe(name, seconds)
        self._reporter.touch()

    def status(self) -> dict[str, Any]:
        """Return the current fields of ``PoolStatus``."""
        population = self._population()
        return {
            "backend": self.name,
            "wanted": self.wanted,
            "waiting": self.waiting,
            "starting": self.starting,
            "live": self.live,
            "idle": population.idle if population else 0,
            "max_live": self._config.max_live,
            "max_starting": self._config.max_starting,
            "opened": self._opened,
            "failures": dict(self._failures),
            "images": self._images.troubled(now=time.monotonic()),
            "nodes": dict(population.nodes if population else self._nodes),
            "clocks": self.histograms.records(),
            "orphans": self._orphans,
            "paused_reason": self._breaker.reason,
            "blocked": self._blocked(),
        }

    @property
    def waiting(self) -> int:
        """Return the number of leases that wait for admission."""
        return len(self._queue)

    @property
    def wanted(self) -> int:
        """Return the number of sandboxes in use or requested."""
        return self.waiting + self.starting + self.live

    # --- states of a lease -------------------------------------------------------------------------

    def check_image(self, image: str) -> None:
        """Raise ImageError while sandboxes of the image are refused."""
        if refusal := self._refusal(image, now=time.monotonic()):
            raise ImageError(refusal)

    def _refusal(self, image: str, *, now: float) -> str:
        return refused_registry(image, self._config) or self._images.refusal(image, now=now)

    async def take_place(self, lease: Lease) -> None:
        """Wait for admission of a lease. Raises ImageError, SandboxQueueTimeoutError."""
        try:
            self.check_image(lease.spec.image)
        except ImageError as error:
            self._failures[error.kind] += 1
            raise
        ticket = Ticket(lease, asyncio.get_running_loop().create_future())
        self._queue.add(ticket)
        began = time.monotonic()
        self._admit_soon()
        try:
            async with asyncio.timeout(self._config.queue_timeout_s):
                await ticket.admitted
        except TimeoutError:
            self._withdraw(ticket)
            self._failures[SandboxQueueTimeoutError.kind] += 1
            raise SandboxQueueTimeoutError(self._why_waiting()) from None
        except BaseException:
            self._withdraw(ticket)
            raise
        self.histograms.observe("queue", time.monotonic() - began)

    def started(self, lease: Lease, startup: Startup) -> None:
        """Record that the lease's sandbox is ready."""
        self.starting -= 1
        self.live += 1
        self._nodes[startup.node] += 1
        if startup.pull:
            self.histograms.observe("pull", startup.pull)
        self.histograms.observe("start", startup.start)
        self._images.started(lease.spec.image)
        self._breaker.started()
        self._reporter.changed(lease.record("started"))
        self._admit_soon()

    def not_started(self, lease: Lease, error: BaseException) -> None:
        """Record that the lease's sandbox did not start, or was cancelled before it was ready."""
        self.starting -= 1
        now = time.monotonic()
        if isinstance(error, ImageError):
            if not self._images.refusal(lease.spec.image, now=now) and self._images.failed(
                lease.spec.image, one_line(error), now=now
            ):
                message = self._images.refusal(lease.spec.image, now=now)
                self._reporter.alert("warning", "sandbox_image", f"{message}; further starts fail at once")
        elif isinstance(error, SandboxError):
            self._pause_if(self._breaker.failed(one_line(error), now=now))
        self._count_failure(error)
        failed = isinstance(error, SandboxError)
        self._reporter.changed(lease.record("failed" if failed else "closed", error=error))
        self._admit_soon()

    def ended(self, lease: Lease, error: BaseException | None) -> None:
        """Record that the lease's sandbox is gone; ``error`` ended its use, if any."""
        self.live -= 1
        if lease.startup is not None:
            self._nodes[lease.startup.node] -= 1
            self._nodes += Counter()  # drops nodes without sandboxes
        self._count_failure(error)
        failed = isinstance(error, SandboxError)
        self._reporter.changed(lease.record("failed" if failed else "closed", error=error))
        self._admit_soon()

    # --- admission ---------------------------------------------------------------------------------

    def _admit_soon(self) -> None:
        """Schedule one admission for all changes of the current loop iteration."""
        if self._admission is None:
            self._admission = asyncio.get_running_loop().call_soon(self._admit)

    def _admit(self) -> None:
        """Admit waiting leases within the budgets and record them before their sandboxes exist."""
        self._admission = None
        admitted: list[Ticket] = []
        while self.waiting and self._has_room():
            ticket = self._queue.next()
            if ticket.admitted.done():  # cancelled a moment ago
                continue
            self.starting += 1
            ticket.lease.leased_at = time.time()
            admitted.append(ticket)
        if not admitted:
            return
        self._opened += len(admitted)
        try:
            self._reporter.leased([ticket.lease.record("leased") for ticket in admitted])
        except Exception as error:  # a fenced run, a full disk: nothing may be created
            self.starting -= len(admitted)
            for ticket in admitted:
                ticket.admitted.set_exception(error)
            return
        for ticket in admitted:
            ticket.admitted.set_result(None)

    def _has_room(self) -> bool:
        config, now = self._config, time.monotonic()
        if self.starting >= config.max_starting or self.starting + self.live >= config.max_live:
            return False
        room = self._breaker.room(now=now, starting=self.starting)
        pause = self._breaker.seconds_left(now)
        if room == 0 and pause and self._wake is None:
            self._wake = asyncio.get_running_loop().call_later(pause, self._pause_over)
        return room != 0

    def _pause_over(self) -> None:
        self._wake = None
        self._admit()

    def _withdraw(self, ticket: Ticket) -> None:
        """Withdraw a lease that no longer waits; return a place just granted."""
        if self._queue.remove(ticket):
            self._reporter.touch()
        elif not ticket.admitted.cancelled() and ticket.admitted.exception() is None:
            self.not_started(ticket.lease, asyncio.CancelledError())

    def _why_waiting(self) -> str:
        config = self._config
        prefix = f"no place in the sandbox pool within {config.queue_timeout_s:g} s: "
        if self._breaker.reason:
            return f"{prefix}no sandboxes are started because {self._breaker.reason}"
        usage = f"{self.live} of {config.max_live} are live, {self.starting} starting"
        return f"{prefix}{usage}, {self.waiting} waiting"

    def _population(self) -> Population | None:
        return self.backend.population() if isinstance(self.backend, Counting) else None

    def _blocked(self) -> dict[str, int]:
        reasons = self.backend.blocked().values() if isinstance(self.backend, Explaining) else ()
        return dict(Counter(" ".join(reason.split())[:300] for reason in reasons).most_common(_MAX_REASONS))

    def _inspected(self) -> dict[str, Any]:
        """Return the status after checking for surplus sandboxes."""
        if (population := self._population()) is not None:
            # Within the budget, sandboxes that the backend keeps ready are no surplus.
            ready = max(0, min(population.idle, self._config.max_live - self.wanted))
            existing, wanted = population.existing - ready, self.wanted + max(0, self._prepared - ready)
            self._pause_if(self._breaker.counted(existing=existing, wanted=wanted, now=time.monotonic()))
            if self._breaker.too_many:
                self._reporter.touch()
        return self.status()

    def _pause_if(self, begins: bool) -> None:
        if begins:
            pause = self._breaker.seconds_left(time.monotonic())
            self._reporter.alert(
                "warning",
                "sandbox_pool_paused",
                f"no sandboxes are started for {pause:.0f} s: {self._breaker.reason}",
            )

    def _count_failure(self, error: BaseException | None) -> None:
        if isinstance(error, SandboxError):
            self._failures[error.kind] += 1


class PooledSandbox(AbstractAsyncContextManager[Sandbox]):
    """One sandbox of the pool; entering the context waits for admission and starts it.

    Entering raises:
        SandboxQueueTimeoutError: it was not admitted in time.
        SandboxStartError: it did not start; an ``ImageError`` at once while its image is refused.
    """

    def __init__(self, pool: SandboxPool, spec: SandboxSpec) -> None:
        self.lease = Lease(spec, pool.name)
        self._pool = pool
        self._inner: AbstractAsyncContextManager[Sandbox] | None = None

    async def __aenter__(self) -> Sandbox:
        pool, lease = self._pool, self.lease
        began = time.monotonic()
        try:
            await pool.take_place(lease)
        finally:
            lease.queue_seconds = time.monotonic() - began
        try:
            pool.check_image(lease.spec.image)
            self._inner = pool.backend.open(lease.spec)
            sandbox = await self._inner.__aenter__()
        except BaseException as error:
            pool.not_started(lease, error)
            raise
        lease.sandbox_id, lease.startup, lease.started_at = sandbox.id, sandbox.startup, time.time()
        pool.started(lease, sandbox.startup)
        return sandbox

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._inner is not None, "a sandbox is left only after it was entered"
        try:
            await self._inner.__aexit__(None, None, None)
        except SandboxError as problem:
            error = error or problem
            raise
        finally:
            self._pool.ended(self.lease, error)
