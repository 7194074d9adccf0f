"""Slots of acting rollouts, and the gate of their attempts."""

from __future__ import annotations

import asyncio
from typing import Literal


class Slots(asyncio.Semaphore):
    """Semaphore of acting rollouts, with counts of acting and of graded ones.

    Args:
        limit: maximum number of rollouts that act at once.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.acting = 0
        """Rollouts that hold a slot."""
        self.grading = 0
        """Rollouts that are being graded."""

    async def acquire(self) -> Literal[True]:
        """Acquire a slot, waiting for one."""
        await super().acquire()
        self.acting += 1
        return True

    def release(self) -> None:
        """Release a slot."""
        self.acting -= 1
        super().release()


def open_gate() -> asyncio.Event:
    """Return an event that is set."""
    gate = asyncio.Event()
    gate.set()
    return gate
