"""Cache of snapshots shared between tabs: a page is rendered once per change for all tabs.

A tab notified of a change at time t uses any snapshot whose rendering began after t, or renders a new one.
The number of cached snapshots is bounded; a snapshot contains only rendered text.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass, field

from channels.db import database_sync_to_async

from webapp.live.fragments import Snapshot, Subscription, snapshot

MAX_KEPT = 64


@dataclass(slots=True)
class _Entry:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    began: float = float("-inf")
    took: float = 0.0
    value: Snapshot | None = None


class SnapshotCache:
    """Cache of snapshots by subscription, for one event loop."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Subscription, _Entry] = OrderedDict()

    async def get(self, subscription: Subscription, *, not_before: float) -> tuple[Snapshot, float]:
        """Return a snapshot begun at ``not_before`` (monotonic, s) or later, and its rendering time, s."""
        entry = self._entries.setdefault(subscription, _Entry())
        self._entries.move_to_end(subscription)
        while len(self._entries) > MAX_KEPT:
            self._entries.popitem(last=False)
        async with entry.lock:
            if entry.value is None or entry.began < not_before:
                began = time.monotonic()
                entry.value = await database_sync_to_async(snapshot)(subscription)
                entry.began, entry.took = began, time.monotonic() - began
            return entry.value, entry.took
