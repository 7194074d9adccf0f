"""Independent work of a run: what ended is recorded, whatever else fails."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping

from engine.events.delivery.control import Control
from engine.orchestrator.context import RunStopped
from engine.orchestrator.parallel_work import work_in_parallel
from tests.fakes.memory_sandbox import MemoryBackend
from tests.unit.orchestrator.memory_sink import MemorySink, context


class SlowBackend(MemoryBackend):
    """Prepares images only once it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.prepared = asyncio.Event()

    async def prepare(self, images: Mapping[str, int]) -> None:
        await self.prepared.wait()


async def work(
    handled: Mapping[int, ValueError | None],
    *,
    backend: MemoryBackend | None = None,
    is_stopped: bool = False,
) -> list[int]:
    """Handle numbers, each of which may raise; return those recorded, in order, and −1 for an error.

    Args:
        handled: number → what it raises.
        backend: without one, no image takes any time.
        is_stopped: the run is stopped when the first results are recorded; the others end meanwhile.
    """
    recorded: list[int] = []
    control = Control()

    async def handle(number: int) -> int:
        if error := handled[number]:
            raise error
        for _ in range(number if is_stopped else 0):
            await asyncio.sleep(0)
        return number

    async def record(numbers: list[int]) -> None:
        recorded.extend(numbers)
        if isinstance(backend, SlowBackend) and recorded:
            backend.prepared.set()
        if is_stopped and len(recorded) == len(numbers):
            control.stop("enough")
            for _ in range(100):
                await asyncio.sleep(0)

    try:
        await work_in_parallel(
            context(MemorySink(), control),
            deque(handled),
            handle,
            backend=backend or MemoryBackend(),
            image=str,
            width=3,
            record=record,
        )
    except (ValueError, RunStopped):
        recorded.append(-1)
    return recorded


async def test_results_beside_a_failed_item_are_recorded_first() -> None:
    recorded = await work({0: None, 1: ValueError("one"), 2: None, 3: None})
    assert sorted(recorded[:-1]) == [0, 2]
    assert recorded[-1] == -1


async def test_results_are_recorded_while_images_are_prepared() -> None:
    async with asyncio.timeout(30):
        recorded = await work(dict.fromkeys(range(8)), backend=SlowBackend())
    assert sorted(recorded) == list(range(8))


async def test_a_stop_loses_no_result_that_is_there() -> None:
    recorded = await work(dict.fromkeys(range(8)), is_stopped=True)
    assert sorted(recorded) == [-1, 0, 1, 2]
