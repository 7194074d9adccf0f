"""Threads and tasks that end with their caller, and settings of torch's threads."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Executor
from typing import Any, TypeVar

T = TypeVar("T")


def waiting_threads() -> dict[str, str]:
    """Return the environment variable that makes torch's threads sleep while they wait for each other.

    By default they spin for milliseconds (libgomp) whenever one of them has lost its processor to a sandbox
    (``bench.threads``). An existing OMP_WAIT_POLICY wins. It is read when torch is imported.
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
            done.exception()  # marks it as retrieved, which avoids a warning
        raise


async def gather_or_cancel(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Await all and return their results; if one fails, cancel the others and raise its error."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
