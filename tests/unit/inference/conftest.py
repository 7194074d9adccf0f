"""Fixtures that control the event loop's clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """Skip every wait of the event loop; return a function that reads its virtual time."""
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
    """Return a thread-safe function that advances the event loop's clock by seconds."""
    loop = asyncio.get_running_loop()
    now, ahead = loop.time, [0.0]

    def skip(seconds: float) -> None:
        ahead[0] += seconds
        loop.call_soon_threadsafe(lambda: None)  # wakes the loop, which then reads its clock

    monkeypatch.setattr(loop, "time", lambda: now() + ahead[0])
    return skip
