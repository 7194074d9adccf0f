"""Pool of sandboxes started ahead of demand: the next batch's images during the current update.

``prepare`` sets the wanted images; missing sandboxes are started within the room that is left, those of other
images are removed. Opening a sandbox takes a warm one if there is one, or waits for one that is
starting. They never take the room of a sandbox that is wanted now, and an image that fails is not tried again
until the next ``prepare``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog

from engine.config.sandbox import SandboxConfig
from engine.errors import SandboxError
from engine.sandbox.base import SandboxLimits, SandboxSpec
from engine.sandbox.kubernetes.fleet import Fleet
from engine.sandbox.kubernetes.manifests.spec import pool_key
from engine.sandbox.kubernetes.pod import Pod

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Shelf:
    """Warm sandboxes of one kind, ready or starting, with their target number."""

    spec: SandboxSpec
    wanted: int = 0
    starts: list[asyncio.Task[Pod]] = field(default_factory=list)


class WarmPool:
    """Pool of warm sandboxes of one fleet.

    Args:
        config: limits of the sandboxes, and their maximum number.
    """

    def __init__(self, fleet: Fleet, config: SandboxConfig) -> None:
        self._fleet = fleet
        self._config = config
        self._shelves: dict[str, _Shelf] = {}
        self._room = asyncio.Event()
        self._filler: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        """Return the number of ready and starting sandboxes."""
        return sum(len(shelf.starts) for shelf in self._shelves.values())

    @property
    def idle(self) -> int:
        """Return the number of ready sandboxes."""
        return sum(1 for _ in self._ready())

    def prepare(self, images: Mapping[str, int]) -> None:
        """Replace the set of wanted images; returns at once."""
        limits = SandboxLimits(
            memory_mb=self._config.memory_mb,
            processes=self._config.processes,
            disk_mb=self._config.disk_mb,
        )
        cap = self._config.kubernetes.warm_per_image
        for shelf in self._shelves.values():
            shelf.wanted = 0
        for image, count in images.items():
            key = pool_key(image, limits)
            shelf = self._shelves.setdefault(
                key, _Shelf(SandboxSpec(image=image, name="warm", limits=limits))
            )
            shelf.wanted = min(count, cap)
        for key, shelf in list(self._shelves.items()):
            for start in shelf.starts[shelf.wanted :]:
                self._give_back(shelf, start)
            if not shelf.wanted:
                del self._shelves[key]
        self.room()
        if self._filler is None:
            self._filler = asyncio.get_running_loop().create_task(self._fill())

    async def take(self, spec: SandboxSpec) -> Pod | None:
        """Return an unclaimed warm sandbox for ``spec``; None when there is none."""
        shelf = self._shelves.get(pool_key(spec.image, spec.limits))
        while shelf is not None and shelf.starts:
            start = next((start for start in shelf.starts if start.done()), shelf.starts[0])
            shelf.starts.remove(start)
            shelf.wanted -= 1
            try:
                pod = await asyncio.shield(start)
            except SandboxError:
                continue
            except asyncio.CancelledError:
                shelf.starts.append(start)
                shelf.wanted += 1
                raise
            if not pod.failed and not pod.ending:
                return pod
        return None

    def give_way(self) -> bool:
        """Remove a warm sandbox to make room for a requested one; return False when there is none."""
        for shelf in self._shelves.values():
            if shelf.starts:
                shelf.wanted -= 1
                self._give_back(shelf, shelf.starts[-1])
                return True
        return False

    def room(self) -> None:
        """Handle that a place may have become free."""
        self._room.set()

    async def close(self) -> None:
        """Stop starting sandboxes; the fleet removes the pods."""
        tasks: list[asyncio.Task[Any]] = [start for one in self._shelves.values() for start in one.starts]
        self._shelves.clear()
        if self._filler is not None:
            tasks.append(self._filler)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- filling -----------------------------------------------------------------------------------

    async def _fill(self) -> None:
        """Start missing sandboxes, but never so many at once that requested ones would have to wait."""
        at_once = max(1, self._config.max_starting // 2)
        while True:
            self._room.clear()
            self._forget_the_failed()
            shelf = next((one for one in self._shelves.values() if len(one.starts) < one.wanted), None)
            starting = self.count - self.idle
            room = self._config.max_live - len(self._fleet.pods) - self._fleet.reserved
            if shelf is None or starting >= at_once or room <= 0:
                await self._room.wait()
                continue
            start = asyncio.get_running_loop().create_task(self._fleet.launch(shelf.spec, warm=True))
            shelf.starts.append(start)
            start.add_done_callback(partial(self._started, shelf))
            await asyncio.sleep(0)  # lets the fleet register it

    def _forget_the_failed(self) -> None:
        for shelf in self._shelves.values():
            shelf.starts = [start for start in shelf.starts if not _is_lost(start)]

    def _started(self, shelf: _Shelf, start: asyncio.Task[Pod]) -> None:
        self.room()
        if start.cancelled():
            return
        if (error := start.exception()) is not None:
            shelf.wanted = 0
            with contextlib.suppress(ValueError):  # it was taken while it was starting
                shelf.starts.remove(start)
            _log.warning("no warm sandboxes of an image", image=shelf.spec.image, error=str(error))
            return
        idle = self._config.kubernetes.warm_idle_s
        asyncio.get_running_loop().call_later(idle, self._expire, shelf, start)

    def _expire(self, shelf: _Shelf, start: asyncio.Task[Pod]) -> None:
        if start in shelf.starts:
            shelf.wanted -= 1
            self._give_back(shelf, start)

    def _give_back(self, shelf: _Shelf, start: asyncio.Task[Pod]) -> None:
        shelf.starts.remove(start)
        if not start.done():
            start.cancel()  # the fleet removes its pod
        elif not start.cancelled() and start.exception() is None:
            self._fleet.remove(start.result())

    def _ready(self) -> Iterator[Pod]:
        for shelf in self._shelves.values():
            for start in shelf.starts:
                if start.done() and not start.cancelled() and start.exception() is None:
                    yield start.result()


def _is_lost(start: asyncio.Task[Pod]) -> bool:
    """Return whether the sandbox started and failed since."""
    if not start.done() or start.cancelled() or start.exception() is not None:
        return False
    return start.result().failed or start.result().ending
