"""Limits on sandboxes: how many may exist, and how many may be starting, at once.

Wrap a backend once and hand the wrapper to everything that opens sandboxes (rollouts, grading), so
that the limits hold for the whole run. Waiting is first come, first served.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType

from engine.sandbox.base import Sandbox, SandboxBackend, SandboxSpec


class Lease(AbstractAsyncContextManager[Sandbox]):
    """One sandbox under the budget; entering it waits for its turn."""

    def __init__(self, budget: BudgetedBackend, inner: AbstractAsyncContextManager[Sandbox]) -> None:
        self.queue_seconds = 0.0
        """Time spent waiting for a turn."""
        self._budget = budget
        self._inner = inner

    async def __aenter__(self) -> Sandbox:
        began = time.monotonic()
        await self._budget.live.acquire()
        try:
            async with self._budget.starting:
                self.queue_seconds = time.monotonic() - began
                return await self._inner.__aenter__()
        except BaseException:
            self._budget.live.release()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self._inner.__aexit__(kind, error, traceback)
        finally:
            self._budget.live.release()


class BudgetedBackend:
    """Implements ``engine.sandbox.base.SandboxBackend`` over another backend.

    Args:
        backend: what really opens sandboxes.
        max_live: sandboxes that may exist at once.
        max_starting: sandboxes that may be starting at once.
    """

    def __init__(self, backend: SandboxBackend, *, max_live: int, max_starting: int) -> None:
        self.name = backend.name
        self.live = asyncio.Semaphore(max_live)
        self.starting = asyncio.Semaphore(max_starting)
        self._backend = backend

    def open(self, spec: SandboxSpec) -> Lease:
        """Lease a sandbox when its turn comes. Raises SandboxStartError."""
        return Lease(self, self._backend.open(spec))

    async def prepare(self, images: Mapping[str, int]) -> None:
        """Let the backend make ready for what is wanted next."""
        await self._backend.prepare(images)

    async def close(self) -> None:
        """Free what the backend holds."""
        await self._backend.close()

    async def preflight(self) -> list[str]:
        """What the backend lacks."""
        return await self._backend.preflight()

    async def reap(self, *, run_id: str | None = None) -> int:
        """Remove the backend's orphans."""
        return await self._backend.reap(run_id=run_id)
