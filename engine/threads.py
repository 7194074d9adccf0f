"""Threads: work whose end the event loop awaits even when the caller is cancelled, and torch's own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

T = TypeVar("T")


def waiting_threads() -> dict[str, str]:
    """Return the variable that has torch's threads sleep while they wait for each other.

    By default they spin for milliseconds (libgomp), each time that one of them has lost its processor to a
    sandbox (``bench.threads``). What this process's environment says goes first. Read when torch is imported.
    """
    return {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")}


async def in_thread(
    work: Callable[[], T], *, executor: Executor | None = None, on_cancel: Callable[[], None] | None = None
) -> T:
    """Run ``work`` in a thread and return its result; a cancelled caller still waits until it has ended.

    Exceptions of cancelled work are dropped.

    Args:
        work: called once, cancelled or not.
        executor: provides the thread; by default the event loop's own executor.
        on_cancel: asks the work to end early.
    """
    done = asyncio.get_running_loop().run_in_executor(executor, work)
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        if on_cancel is not None:
            on_cancel()
        await asyncio.wait({done})
        if not done.cancelled():
            done.exception()  # marks it as seen
        raise
