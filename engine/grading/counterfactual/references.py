"""References of rows during a run: loaded from the dataset's store, or created at first use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from engine.errors import DatasetError, PatchError, SandboxError
from engine.grading.counterfactual.base import Reference, ReferenceStore
from engine.grading.solution import has_solution
from engine.types import TaskRow

_log = structlog.get_logger(__name__)
_ATTEMPTS = 2
"""Attempts at a proof per row and process."""
Prove = Callable[[TaskRow], Awaitable[Reference]]
"""Creates a reference. Raises DatasetError without a usable gold patch, SandboxError for sandboxes."""


class References:
    """References by row; each is created at most once, and shared by concurrent gradings.

    A proof that failed in every attempt is stored with its reason, for people. Its row has no reference until
    another process tries again.

    Args:
        store: store of existing and of new references; None keeps them in memory.
        prove: creates a missing reference.
        max_proofs: maximum number of concurrent proofs.
    """

    def __init__(self, *, store: ReferenceStore | None, prove: Prove, max_proofs: int = 1) -> None:
        self._store = store
        self._prove = prove
        self._permits = asyncio.Semaphore(max_proofs)
        # By the rows' contents: a row that was edited keeps its id.
        self._made: dict[str, Reference] = {}
        self._making: dict[str, asyncio.Lock] = {}
        self._problems: dict[str, str] = {}

    async def _known(self, row: TaskRow, content: str) -> Reference | None:
        """Return the existing reference of a row; None without one."""
        reference = self._made.get(content)
        if reference is None and self._store is not None:
            reference = await self._store.load(row)
        return reference if reference is not None and not reference.problem else None

    def problem(self, content: str) -> str:
        """Return the reason why the proof of a row failed in this process; empty if none did.

        Args:
            content: hash of the row's content.
        """
        return self._problems.get(content, "")

    async def get(self, row: TaskRow, content: str) -> Reference | None:
        """Return the reference of a row, creating a missing one; None if that fails.

        Args:
            row: the task.
            content: hash of its content.
        """
        async with self._making.setdefault(content, asyncio.Lock()):
            reference = await self._known(row, content)
            if reference is None and has_solution(row) and not self.problem(content):
                async with self._permits:
                    reference = await self._make(row, content)
            return reference

    async def _make(self, row: TaskRow, content: str) -> Reference | None:
        problem = ""
        for _ in range(_ATTEMPTS):
            try:
                return await self._kept(row, await self._prove(row))
            except (DatasetError, PatchError, SandboxError) as error:
                problem = str(error) or type(error).__name__
        _log.warning("task graded without mutated tests", task=row.task.instance_id, reason=problem)
        if (reference := await self._known(row, content)) is not None:
            return reference  # another process created it meanwhile
        self._problems[content] = problem
        await self._kept(row, Reference(content=content, problem=problem))
        return None

    async def _kept(self, row: TaskRow, made: Reference) -> Reference:
        """Store a reference, or keep it in memory if that fails, and return it."""
        if self._store is not None:
            try:
                await self._store.save(row, made)
                return made
            except (OSError, DatasetError) as error:
                _log.warning("cannot store a reference", task=row.task.instance_id, error=str(error))
        self._made[made.content] = made
        return made
