"""Time-out of requests that share a server: it expires when the server samples for none of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class StallWatch:
    """Detector of servers that sample no token for any request; a long queue alone is no stall.

    Args:
        timeout_s: maximum time without a token for any request, seconds.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._watched: set[asyncio.Timeout] = set()
        self._progress_at = 0.0
        self._is_suspended = False
        self._check: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[None]:
        """Watch one request. Raises TimeoutError when the server stalls."""
        async with asyncio.timeout(None) as timeout:
            if not self._watched:
                self.progress()
            self._watched.add(timeout)
            self._arm()
            try:
                yield
            finally:
                self._watched.discard(timeout)

    def progress(self) -> None:
        """Reset the clock: the server has sampled a token."""
        self._progress_at = asyncio.get_running_loop().time()

    def suspend(self) -> None:
        """Stop the clock: the server is paused."""
        self._is_suspended = True

    def resume(self) -> None:
        """Start the clock again."""
        self._is_suspended = False
        self.progress()
        self._arm()

    def _arm(self) -> None:
        if self._check is None:
            loop = asyncio.get_running_loop()
            self._check = loop.call_at(self._progress_at + self.timeout_s, self._look)

    def _look(self) -> None:
        self._check = None
        if self._is_suspended or not self._watched:
            return
        now = asyncio.get_running_loop().time()
        if now < self._progress_at + self.timeout_s:
            self._arm()
            return
        for timeout in self._watched:
            timeout.reschedule(now)
