"""Work in threads that the event loop waits for to the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

T = TypeVar("T")


async def in_thread(
    work: Callable[[], T], *, executor: Executor | None = None, on_cancel: Callable[[], None] | None = None
) -> T:
    """Return the result of ``work``, done in a thread; a cancelled caller still waits until it has ended.

    What cancelled work raises is dropped.

    Args:
        work: called once, cancelled or not.
        executor: whose thread; by default one of the event loop's own.
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
