"""Limits shared by all rollouts of a run: request rates, requests in flight, spending."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from aiolimiter import AsyncLimiter

from engine.errors import SpendLimitError
from engine.files import atomic_write

_PERIOD_S = 60.0
_JITTER_S = 1.0
"""Time over which simultaneously resumed requests are spread, seconds."""


class RateLimits:
    """Limits of requests and tokens per minute, first come, first served.

    Tokens are estimated before a request; the estimate's error is charged to the next one.

    Args:
        requests_per_minute: maximum rate; None: unlimited.
        tokens_per_minute: maximum rate of prompts and responses together; None: unlimited.
    """

    def __init__(self, requests_per_minute: int | None, tokens_per_minute: int | None) -> None:
        self._requests = AsyncLimiter(requests_per_minute, _PERIOD_S) if requests_per_minute else None
        self._tokens = AsyncLimiter(tokens_per_minute, _PERIOD_S) if tokens_per_minute else None
        self._owed = 0.0
        self._queue = asyncio.Lock()  # the limiter alone would starve large requests

    @property
    def counts_tokens(self) -> bool:
        """Return whether estimates of tokens are needed."""
        return self._tokens is not None

    async def wait(self, tokens: int) -> None:
        """Wait until a request of that length may be sent."""
        async with self._queue:
            if self._requests is not None:
                await self._requests.acquire()
            if self._tokens is not None:
                owed = self._owed
                due = max(tokens + owed, 0.0)
                while due > 0:
                    await self._tokens.acquire(min(due, self._tokens.max_rate))
                    due -= self._tokens.max_rate
                self._owed -= owed  # not before: this request may be cancelled, others may settle

    def settle(self, estimated: int, used: int) -> None:
        """Charge or credit the difference between a request's tokens and its estimate."""
        self._owed += used - estimated


class Window:
    """Limit of requests in flight: halved at rate-limit answers, increased by successful ones.

    Unlimited until the first rate-limit answer.
    """

    def __init__(self) -> None:
        self.size = math.inf
        self.in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._narrowed_at = 0.0
        self._paused_until = 0.0

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Acquire a place in the window after any pause; release it after the body."""
        await self._enter()
        while (pause := self._paused_until - time.monotonic()) > 0:
            self._leave()
            await asyncio.sleep(pause + random.random() * min(_JITTER_S, pause))
            await self._enter()
        try:
            yield
        finally:
            self._leave()

    def narrow(self, *, sent_at: float, pause_s: float) -> None:
        """Halve the window at a rate-limit answer; a burst of them counts once.

        Args:
            sent_at: ``time.monotonic()`` when the refused request was sent.
            pause_s: pause before the next request, seconds.
        """
        now = time.monotonic()
        self._paused_until = max(self._paused_until, now + pause_s)
        if sent_at >= self._narrowed_at:
            self._narrowed_at = now
            self.size = max(1.0, min(self.size, self.in_flight) / 2)

    def widen(self) -> None:
        """Widen the window after an answered request."""
        self.size += 1 / self.size
        self._wake()

    async def _enter(self) -> None:
        if not self._waiting and self.in_flight + 1 <= self.size:
            self.in_flight += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()  # the place was granted at the same moment
            raise

    def _leave(self) -> None:
        self.in_flight -= 1
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self.in_flight + 1 <= max(self.size, 1):
            turn = self._waiting.popleft()
            if not turn.done():
                self.in_flight += 1
                turn.set_result(None)


@dataclass(slots=True, eq=False)
class Bill:
    """Cost of one request."""

    cost: float
    """US dollars: an estimate until the endpoint reports its usage."""


class Spending:
    """Money spent by a run at an endpoint, over all attempts; lost requests are estimated.

    No request starts once the limit is reached. Requests in flight are still paid: at most one for each
    concurrent rollout.

    Args:
        limit: US dollars; None: unlimited.
        book: file that keeps the sum between attempts; None keeps it in memory only.
    """

    def __init__(self, limit: float | None, book: Path | None = None) -> None:
        self._limit = limit
        self._book = book
        self.spent = 0.0
        self._open: list[Bill] = []
        """Bills of the requests in flight."""
        if book is not None and book.exists():
            stored = json.loads(book.read_text())
            # Requests in flight when an attempt was killed are billed, though their answers are lost.
            self.spent = float(stored["us_dollars"]) + float(stored.get("in_flight", 0.0))

    def check(self) -> None:
        """Raise SpendLimitError once the limit is reached."""
        if self._limit is not None and self.spent >= self._limit:
            raise SpendLimitError(
                f"the run has spent ${self.spent:.4f} of policy.spend_limit ${self._limit:g}; "
                "start another run with a higher limit to go on"
            )

    @contextmanager
    def request(self, estimate: float) -> Iterator[Bill]:
        """Count the cost of a request, failed or not.

        Args:
            estimate: expected US dollars; counted where the endpoint reports no usage.
        """
        bill = Bill(cost=estimate)
        self._open.append(bill)
        self._write()
        try:
            yield bill
        finally:
            self._open.remove(bill)
            self.spent += bill.cost
            self._write()

    def _write(self) -> None:
        in_flight = math.fsum(bill.cost for bill in self._open)
        if self._book is not None and (self.spent or in_flight):
            atomic_write(self._book, json.dumps({"us_dollars": self.spent, "in_flight": in_flight}) + "\n")
