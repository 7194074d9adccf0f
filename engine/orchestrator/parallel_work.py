"""Independent work of a run in the sandboxes of a backend, several items at once."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
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
        Exception: of the first item that failed, once the results of all that ended are recorded.
    """
    active: set[asyncio.Task[Result]] = set()
    preparation: asyncio.Task[None] | None = None
    try:
        while items or active:
            run.check()
            paused = run.control.desired() == "pause"
            if paused and not active:
                await run.safe_point()
                continue
            if preparation is None and not paused and items and len(active) < width:
                while items and len(active) < width:
                    active.add(asyncio.create_task(handle(items.popleft())))
                if items:
                    images = dict(Counter(image(item) for item in islice(items, width)))
                    preparation = asyncio.create_task(backend.prepare(images))
            waiting = [*active, preparation] if preparation else active
            finished, _ = await asyncio.wait(waiting, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
            ended = active & finished
            active -= ended
            await record(_results(ended))
            for task in finished:
                task.result()
            if preparation in finished:
                preparation = None
    finally:
        rest: set[asyncio.Task[Any]] = {*active, preparation} if preparation else {*active}
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=CANCEL_S)
        results = _results(active)
        if results and not run.control.fence_reason:
            await record(results)


def _results(tasks: Iterable[asyncio.Task[Result]]) -> list[Result]:
    """Return the results of tasks that ended without an error."""
    return [
        task.result() for task in tasks if task.done() and not task.cancelled() and task.exception() is None
    ]
