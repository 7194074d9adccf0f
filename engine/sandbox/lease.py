"""One sandbox of the pool, from waiting for a place to the place given back, and its record."""

from __future__ import annotations

import secrets
import time
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING

from engine.errors import SandboxError
from engine.sandbox.base import Sandbox, SandboxSpec, Startup
from engine.sandbox.pool_report import Record

if TYPE_CHECKING:
    from engine.sandbox.pool import SandboxPool


class Lease(AbstractAsyncContextManager[Sandbox]):
    """One sandbox of the pool; entering it waits for a place and starts it.

    Entering raises:
        SandboxQueueTimeoutError: no place in time.
        SandboxStartError: it did not come up; an ``ImageError`` at once while its image is refused.
    """

    def __init__(self, pool: SandboxPool, spec: SandboxSpec) -> None:
        self.id = f"ls-{secrets.token_hex(8)}"
        self.spec = spec
        self.queue_seconds = 0.0
        """Time spent waiting for a place."""
        self.startup: Startup | None = None
        """Where it runs and what its start took; None before."""
        self.sandbox_id = ""
        self.leased_at: float | None = None
        self.started_at: float | None = None
        self._pool = pool
        self._inner: AbstractAsyncContextManager[Sandbox] | None = None

    async def __aenter__(self) -> Sandbox:
        began = time.monotonic()
        try:
            await self._pool.take_place(self)
        finally:
            self.queue_seconds = time.monotonic() - began
        try:
            self._pool.check_image(self.spec.image)
            self._inner = self._pool.backend.open(self.spec)
            sandbox = await self._inner.__aenter__()
        except BaseException as error:
            self._pool.not_started(self, error)
            raise
        self.sandbox_id, self.startup, self.started_at = sandbox.id, sandbox.startup, time.time()
        self._pool.started(self, sandbox.startup)
        return sandbox

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._inner is not None, "a lease is left only after it was entered"
        try:
            await self._inner.__aexit__(None, None, None)
        except SandboxError as problem:
            error = error or problem
            raise
        finally:
            self._pool.ended(self, error)

    def record(self, state: str, *, error: BaseException | None = None) -> Record:
        """Fields of ``SandboxRecord`` in a state."""
        startup = self.startup
        return {
            "lease": self.id,
            "state": state,
            "name": self.spec.name[:200],
            "lane": self.spec.lane[:64],
            "image": self.spec.image[:300],
            "backend": self._pool.name,
            "sandbox_id": self.sandbox_id,
            "node": startup.node if startup else "",
            "warm": startup.warm if startup else False,
            "queue_seconds": self.queue_seconds,
            "pull_seconds": startup.pull if startup else 0.0,
            "start_seconds": startup.start if startup else 0.0,
            "leased_at": self.leased_at or time.time(),
            "started_at": self.started_at,
            "ended_at": time.time() if state in ("closed", "failed") else None,
            "failure": error.kind if isinstance(error, SandboxError) else "",
            "reason": plain(error) if isinstance(error, SandboxError) else "",
        }


def plain(error: BaseException) -> str:
    """An error's text as one line of valid Unicode."""
    text = str(error) or type(error).__name__
    return " ".join(text.split()).encode("utf-8", "replace").decode()[:1000]
