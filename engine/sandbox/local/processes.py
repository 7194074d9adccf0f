"""Processes of one local sandbox, and their termination."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from functools import partial

from engine.errors import SandboxDiedError
from engine.processes import cgroups
from engine.sandbox.base import SandboxSpec
from engine.sandbox.client import AgentClient
from engine.sandbox.ledger import Ledger, LedgerEntry
from engine.sandbox.local.spawn_client import SpawnClient
from engine.threads import in_thread

_CLOSE_S = 10.0


class Processes:
    """Processes, ledger entry, control groups and agent client of one running sandbox."""

    def __init__(self, spawner: SpawnClient, ledger: Ledger, entry: LedgerEntry, errors: int) -> None:
        self.spawner = spawner
        self.ledger = ledger
        self.entry = entry
        self.errors = errors
        self.client: AgentClient | None = None
        self.lifetime: asyncio.TimerHandle | None = None
        self.status: int | None = None
        """Exit status; None while the sandbox runs, or when it is unknown."""

    @property
    def usable(self) -> bool:
        """Return whether the sandbox runs and its agent accepts requests."""
        gone = self.spawner.is_gone(self.entry.id)
        return self.spawner.alive and not gone and self.client is not None and self.client.usable

    def expire(self) -> None:
        """End the sandbox because its lifetime is over."""
        if self.client is not None:
            self.client.fail(SandboxDiedError("the sandbox reached the end of its lifetime"))
        self.spawner.kill(self.entry.id)

    async def assign(self, spec: SandboxSpec) -> None:
        """Assign a warm sandbox to the request ``spec``; its lifetime begins now."""
        deadline = time.monotonic() + spec.limits.lifetime_s
        self.entry = replace(self.entry, run_id=spec.run_id, name=spec.name, deadline=deadline)
        await in_thread(partial(self.ledger.write, self.entry))

    def post_mortem(self) -> str:
        """Return the cause of an unexpected end, as far as known."""
        if cgroups.oom_killed(self.entry.cgroups):
            return "it went over its memory limit"
        return self.stderr()

    def stderr(self) -> str:
        """Return the error output of bubblewrap and the agent so far."""
        try:
            return os.read(self.errors, 4096).decode(errors="replace").strip()
        except (BlockingIOError, OSError):
            return ""

    async def end(self) -> None:
        """Kill all processes and free all resources."""
        if self.lifetime is not None:
            self.lifetime.cancel()
        sandbox = self.entry.id
        try:
            async with asyncio.timeout(_CLOSE_S):
                if not self.spawner.is_gone(sandbox):
                    self.spawner.kill(sandbox)
                self.status = await self.spawner.gone(sandbox)
        except TimeoutError:
            pass  # its groups are killed below; if that fails, the ledger keeps the entry
        self.spawner.forget(sandbox)
        os.close(self.errors)
        await in_thread(self._free)

    def _free(self) -> None:
        """Remove the groups, killing remaining processes, and then the ledger entry."""
        if not cgroups.remove(self.entry.cgroups):
            cgroups.kill(self.entry.cgroups)
            if not cgroups.remove(self.entry.cgroups):
                return
        self.ledger.remove(self.entry)
