"""References of rows while a run grades: from the dataset's store, or made at first use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from engine.errors import DatasetError
from engine.grading.counterfactual.base import Reference, ReferenceStore
from engine.types import TaskRow

_log = structlog.get_logger(__name__)
Prove = Callable[[TaskRow], Awaitable[Reference]]
"""Makes a reference. Raises DatasetError without a usable gold patch, SandboxError as sandboxes do."""


class References:
    """References by row; each is made at most once, and shared by concurrent gradings.

    Args:
        store: where validated rows have theirs, and made ones are kept; None keeps them in memory.
        prove: makes a missing reference; None makes none.
    """

    def __init__(self, *, store: ReferenceStore | None, prove: Prove | None) -> None:
        self._store = store
        self._prove = prove
        self._made: dict[str, Reference | None] = {}
        self._making: dict[str, asyncio.Lock] = {}

    async def known(self, row: TaskRow) -> Reference | None:
        """Return the reference of a row as far as there is one already."""
        if row.task.id in self._made:
            return self._made[row.task.id]
        return await self._store.load(row) if self._store is not None else None

    async def get(self, row: TaskRow) -> Reference | None:
        """Return the reference of a row, made now where there is none; None where it cannot be made.

        Raises:
            SandboxError: infrastructure failed; the next call tries again.
        """
        async with self._making.setdefault(row.task.id, asyncio.Lock()):
            found = await self.known(row)
            if found is None and self._prove is not None and row.task.id not in self._made:
                found = await self._make(row, self._prove)
            return found

    async def _make(self, row: TaskRow, prove: Prove) -> Reference | None:
        try:
            made = await prove(row)
        except DatasetError as error:
            _log.warning("task graded without false tests", task=row.task.instance_id, reason=str(error))
            self._made[row.task.id] = None
            return None
        if self._store is not None:
            try:
                await self._store.save(row, made)
                return made
            except OSError as error:
                _log.warning("cannot store a reference", task=row.task.instance_id, error=str(error))
        self._made[row.task.id] = made
        return made
