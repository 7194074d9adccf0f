"""Container of one sandbox: its ledger entry, its connection, and the diagnosis of its end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import docker
import docker.errors

from engine.errors import (
    ImageError,
    NoGreetingError,
    SandboxDiedError,
    SandboxError,
    SandboxMemoryError,
    SandboxStartError,
    SandboxStartTimeoutError,
    SandboxTransportError,
)
from engine.sandbox.agent.interpreters import NO_PYTHON
from engine.sandbox.base import SandboxSpec
from engine.sandbox.client import AgentClient
from engine.sandbox.docker.attach import AttachedStream
from engine.sandbox.docker.daemon import Daemon
from engine.sandbox.docker.reaper import remove
from engine.sandbox.ledger import Ledger, LedgerEntry

_SETTLE_S = 2.0
_REMOVE_PAUSES_S = (0.2, 1.0)


class Container:
    """The container of one ``AgentSandbox``."""

    def __init__(self, daemon: Daemon, ledger: Ledger, entry: LedgerEntry, spec: SandboxSpec) -> None:
        self.daemon = daemon
        self.ledger = ledger
        self.entry = entry
        self.name = f"trainyard-{entry.id}"
        self.memory_mb = spec.limits.memory_mb
        self.disk_bytes = spec.limits.disk_mb << 20
        self.container_id = ""
        self.creating: asyncio.Future[str] | None = None
        self.stream: AttachedStream | None = None
        self.client: AgentClient | None = None
        self.lifetime: asyncio.TimerHandle | None = None
        self.env: Mapping[str, str] = {}
        """Environment variables reported by the agent."""
        self._expected = False
        self._background: set[asyncio.Task[None]] = set()

    @property
    def usable(self) -> bool:
        """Return whether the agent accepts calls, as far as is known."""
        return not self._expected and self.client is not None and self.client.usable

    def claim(self, spec: SandboxSpec) -> None:
        """Assign a container started ahead of demand to ``spec``; its lifetime begins now."""
        deadline = time.monotonic() + spec.limits.lifetime_s
        self.entry = replace(self.entry, name=spec.name, deadline=deadline)
        self.ledger.write(self.entry)

    def stderr(self) -> str:
        """Return the error output of the shell or the agent."""
        return self.stream.stderr.decode(errors="replace").strip() if self.stream else ""

    def exit_cause(self) -> str:
        """Return the best known cause of an unexplained end."""
        return self.stderr()

    def fail(self, error: SandboxError) -> None:
        """Kill the container; its user's calls fail with ``error``."""
        self._expected = True
        if self.client is not None:
            self.client.fail(error)
        task = asyncio.ensure_future(self._kill())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _kill(self) -> None:
        def kill(client: docker.APIClient) -> None:
            with contextlib.suppress(docker.errors.APIError):
                client.kill(self.container_id)

        with contextlib.suppress(SandboxError):
            await self.daemon.call(kill)

    async def on_connection_lost(self) -> None:
        """Handle a lost connection: determine the cause before the sandbox's user sees an error."""
        if self._expected or self.client is None:
            return
        self.client.fail(await self._cause())

    async def _cause(self) -> SandboxError:
        give_up = asyncio.get_running_loop().time() + _SETTLE_S
        while True:
            try:
                state = await self.daemon.call(self._state)
            except SandboxError as error:
                return SandboxDiedError(f"the sandbox ended while it was in use: {error}")
            if state is None:
                return SandboxDiedError("the sandbox ended while it was in use: its container was removed")
            if not state["Running"]:
                return self._verdict(state)
            if asyncio.get_running_loop().time() > give_up:
                return SandboxTransportError("the connection to the sandbox's agent was lost")
            await asyncio.sleep(0.05)

    def _state(self, client: docker.APIClient) -> dict[str, Any] | None:
        try:
            state: dict[str, Any] = client.inspect_container(self.container_id)["State"]
        except docker.errors.NotFound:
            return None
        return state

    def _verdict(self, state: dict[str, Any]) -> SandboxError:
        if state["OOMKilled"] and state["ExitCode"] == 137:
            return SandboxMemoryError(f"the sandbox went over its memory limit of {self.memory_mb} MiB")
        message = self.stderr() or state["Error"]
        detail = f"its container ended with status {state['ExitCode']}" + (f": {message}" if message else "")
        return SandboxDiedError(f"the sandbox ended while it was in use: {detail}")

    async def abandon(self) -> bool:
        """Clean up after a failed or cancelled start; return the result of ``end``."""
        self._expected = True
        if self.creating is not None:
            with contextlib.suppress(SandboxError):
                self.container_id = await self.creating
        if self.client is not None:
            await self.client.close()
        return await self.end()

    def start_failure(self, error: BaseException, spec: SandboxSpec) -> BaseException:
        """Convert an exception during the start to the error for the caller."""
        if not isinstance(error, Exception):
            return error  # cancelled: nobody reads the container's output
        output = self.stderr()
        if NO_PYTHON in output:
            return ImageError(f"image '{spec.image}': {output}")
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return ImageError(f"image '{spec.image}' has no folder {spec.workdir}")
        # The API reports a missing shell only in its message.
        if isinstance(error, SandboxStartError) and "/bin/sh" in str(error):
            return ImageError(f"image '{spec.image}' has no /bin/sh: {error}")
        if isinstance(error, SandboxDiedError):
            return SandboxStartError(f"{error}")
        if isinstance(error, NoGreetingError):
            return SandboxStartTimeoutError(f"image '{spec.image}': {error}")
        return error

    async def end(self) -> bool:
        """Kill and remove the container; return False when the daemon could not (to be retried)."""
        self._expected = True
        if self.lifetime is not None:
            self.lifetime.cancel()
        for pause in (0.0, *_REMOVE_PAUSES_S):
            await asyncio.sleep(pause)
            with contextlib.suppress(SandboxError):
                if await self.daemon.call(lambda client: remove(client, self.name)):
                    self.ledger.remove(self.entry)
                    return True
        return False
