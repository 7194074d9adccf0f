"""Independent work of a run in the sandboxes of a backend, several items at once."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine
from itertools import islice
from typing import Any, TypeVar

from engine.orchestrator.context import CANCEL_S, POLL_S, RunContext
from engine.sandbox.base import SandboxBackend

Item = TypeVar("Item")
Result = TypeVar("Result")


async def work_in_parallel(
    run: RunContext,
    items: deque[Item],
    handle: Callable[[Item], Coroutine[Any, Any, Result]],
    *,
    backend: SandboxBackend,
    image: Callable[[Item], str],
    width: int,
    record: Callable[[list[Result]], Awaitable[None]],
) -> None:
    """Handle all items; a pause waits for those in progress.

    Args:
        run: the attempt, which may be paused, stopped or replaced.
        items: the work left, taken from the left.
        handle: handles one item.
        backend: prepares the images of the next items.
        image: returns the image of an item.
        width: maximum number of items at once.
        record: receives the results of items that ended, at least each ``POLL_S``; may be empty.

    Raises:
        RunStopped, FencedError, DeliveryError: the attempt must end; items in progress are dropped.
    """
    active: set[asyncio.Task[Result]] = set()
    try:
        while items or active:
            run.check()
            paused = run.control.desired() == "pause"
            if paused and not active:
                await run.safe_point()
                continue
            if not paused and items and len(active) < width:
                while items and len(active) < width:
                    active.add(asyncio.create_task(handle(items.popleft())))
                if items:
                    await backend.prepare(dict(Counter(image(item) for item in islice(items, width))))
            finished, active = await asyncio.wait(active, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
            await record([task.result() for task in finished])
    finally:
        for task in active:
            task.cancel()
        if active:
            await asyncio.wait(active, timeout=CANCEL_S)
