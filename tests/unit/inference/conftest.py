"""Clocks for tests of waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """Let the event loop's time pass at once wherever it would wait; return that time."""
    loop: Any = asyncio.get_running_loop()
    select, now = loop._selector.select, [0.0]

    def skip(timeout: float | None) -> Any:
        now[0] += timeout or 0.0
        return select(None if timeout is None else 0)

    def read() -> float:
        return now[0]

    monkeypatch.setattr(loop._selector, "select", skip)
    monkeypatch.setattr(loop, "time", read)
    return read


@pytest.fixture
async def skip_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function, for any thread, that makes seconds of the event loop's time pass at once."""
    loop = asyncio.get_running_loop()
    now, ahead = loop.time, [0.0]

    def skip(seconds: float) -> None:
        ahead[0] += seconds
        loop.call_soon_threadsafe(lambda: None)  # wakes the loop, which looks at its clock

    monkeypatch.setattr(loop, "time", lambda: now() + ahead[0])
    return skip
