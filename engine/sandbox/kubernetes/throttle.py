"""How fast the API server may be asked to change things, and how long to wait after it refused."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

_MAX_PAUSE_S = 15.0


class TokenBucket:
    """At most ``burst`` requests at once and ``rate`` per second on average; callers queue in order.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate
        self.burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._at = clock()
        self._closed_until = 0.0

    def reserve(self) -> float:
        """Take a token; returns the seconds to wait before using it."""
        now = self._clock()
        self._tokens = min(self.burst, self._tokens + (now - self._at) * self.rate) - 1
        self._at = now
        return max(0.0, -self._tokens / self.rate, self._closed_until - now)

    def close_for(self, seconds: float) -> None:
        """Nobody may go for that long: the server said ``Retry-After``."""
        self._closed_until = max(self._closed_until, self._clock() + seconds)

    async def take(self) -> None:
        """Wait for a turn."""
        wait = self.reserve()
        while wait > 0:
            await asyncio.sleep(wait)
            wait = self._closed_until - self._clock()


def pause_after(attempt: int, retry_after: float = 0.0) -> float:
    """Seconds to wait after try number ``attempt``: exponential with jitter, never less than was asked."""
    exponential = min(_MAX_PAUSE_S, 0.1 * 2.0**attempt)
    return retry_after + exponential * random.uniform(0.5, 1.0)
