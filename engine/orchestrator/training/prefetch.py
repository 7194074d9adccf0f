"""Prefetching of the next iteration's images during the current update."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import structlog

from engine.errors import TrainyardError
from engine.orchestrator.setup import RunEnvironments
from engine.types import TaskRow

log = structlog.get_logger("orchestrator")


class Prefetch:
    """Preparation of environments in advance, at most one request at a time; its failures are ignored."""

    def __init__(self, environments: RunEnvironments, *, group_size: int) -> None:
        self._environments = environments
        self._group_size = group_size
        self._task: asyncio.Task[None] | None = None

    def start(self, rows: Sequence[TaskRow]) -> None:
        """Start preparing the tasks of an iteration, unless the last request is still running."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._prepare(rows))

    async def close(self) -> None:
        """Cancel a request in progress."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _prepare(self, rows: Sequence[TaskRow]) -> None:
        try:
            await self._environments.prepare(rows, group_size=self._group_size)
        except (TrainyardError, OSError) as error:
            log.warning("prefetch_failed", why=str(error))
