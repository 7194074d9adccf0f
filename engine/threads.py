"""Work in threads that the event loop waits for to the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

import structlog

T = TypeVar("T")
_log = structlog.get_logger(__name__)


async def in_thread(
    work: Callable[[], T], *, executor: Executor | None = None, on_cancel: Callable[[], None] | None = None
) -> T:
    """Return the result of ``work``, done in a thread; a cancelled caller still waits until it has ended.

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
        if not done.cancelled() and (error := done.exception()) is not None:
            _log.warning("cancelled_work_failed", reason=str(error))
        raise
