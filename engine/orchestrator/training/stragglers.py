"""Completion of a group: all siblings, or enough of them and a deadline for the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from engine.types import Trajectory

LATE = "enough siblings were graded before it"
"""Error of a rollout that a deadline cancelled."""


async def gather_siblings(
    rollouts: Sequence[asyncio.Task[Trajectory]],
    finished: Sequence[Trajectory] = (),
    *,
    enough: int | None,
    seconds: float,
) -> list[Trajectory]:
    """Return the trajectories of a group by index; those of cancelled rollouts are left out.

    Args:
        rollouts: siblings in flight.
        finished: siblings that are finished already.
        enough: graded siblings after which the rest has a deadline; None waits for all.
        seconds: time until that deadline.

    Raises:
        Exception: raised by a rollout; the others were cancelled first.
    """
    loop, collected, deadline = asyncio.get_running_loop(), list(finished), None
    waiting, reason = set(rollouts), None
    try:
        while waiting:
            graded = sum(trajectory.reward is not None for trajectory in collected)
            if deadline is None and enough is not None and graded >= enough:
                deadline = loop.time() + seconds
            timeout = None if deadline is None else max(0.0, deadline - loop.time())
            done, waiting = await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                reason = LATE
                break
            collected += [task.result() for task in done]
    finally:
        cancel(waiting, reason)
        await asyncio.gather(*waiting, return_exceptions=True)
    return sorted(collected, key=lambda trajectory: trajectory.key.index)


def cancel(tasks: Iterable[asyncio.Task[Any]], reason: str | None = None) -> None:
    """Cancel tasks once: another cancellation would interrupt the closing of a rollout's sandbox."""
    for task in tasks:
        if not task.cancelling():
            task.cancel(reason)
