"""State of one pod in this process, from before its creation until it is gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from engine.errors import SandboxDiedError, SandboxError
from engine.sandbox.base import SandboxSpec, Startup
from engine.sandbox.client import AgentClient
from engine.sandbox.kubernetes import diagnosis
from engine.sandbox.kubernetes.connect import Stream

Json = dict[str, Any]
_VERDICT_S = 3.0
"""Time to wait, after a lost connection, for the cluster to report the reason, seconds."""


class Pod:
    """A pod, the clients of its agents, and its last observed status.

    Args:
        name: name of the pod; also the sandbox's id.
        spec: its sandbox's specification; replaced when a warm pod is claimed.
        failed: called once, when the pod is found to have failed.
    """

    def __init__(self, name: str, spec: SandboxSpec, *, warm: bool, failed: Callable[[Pod], None]) -> None:
        self.name = name
        self.spec = spec
        self.warm = warm
        """Whether the pod was started ahead of demand and is not claimed yet."""
        self.ready = False
        self.ending = False
        self.node = ""
        self.address = ""
        self.blocked = ""
        """Reason of a delayed start, in the cluster's words."""
        self.startup = Startup(node="")
        self.env: Mapping[str, str] = {}
        """Environment variables set by the image."""
        self.api: tuple[str, int] | None = None
        """Host and port of the cluster's API as seen from the pod; None outside a cluster."""
        self.agent: AgentClient | None = None
        self.pristine: AgentClient | None = None
        self._clients: list[AgentClient] = []
        self._failed = failed
        self._verdict: asyncio.Future[SandboxError] = asyncio.get_running_loop().create_future()

    @property
    def failed(self) -> bool:
        """Return whether the pod was ended by the cluster or a broken connection."""
        return self._verdict.done()

    def observe(self, observed: Json | None) -> None:
        """Store a status seen by the informer."""
        if observed is not None:
            self.node, self.address = diagnosis.node(observed), diagnosis.address(observed)
            self.blocked = "" if diagnosis.running(observed) else diagnosis.waiting(observed).reason
        if not self.ending and (error := diagnosis.failure(observed)) is not None:
            self.fail(error)

    def check(self) -> None:
        """Raise the error that ended the pod, if any."""
        if self._verdict.done():
            raise self._verdict.result()

    def fail(self, error: SandboxError) -> None:
        """Mark the pod as failed; callers waiting for a reply receive the reason."""
        if self._verdict.done():
            return
        self._verdict.set_result(error)
        for client in self._clients:
            client.fail(error)
        self._failed(self)

    async def lost(self) -> None:
        """Handle a lost connection: wait a moment for the cluster to report the reason."""
        if self.ending or self.failed:
            return
        with contextlib.suppress(SandboxError):
            await self.wait_for_verdict()
        if not self.failed:
            self.fail(SandboxDiedError("the sandbox ended while it was in use: its connection was lost"))

    async def wait_for_verdict(self) -> None:
        """Wait a moment for the cluster to report the pod's state. Raises the error that ended it, if any."""
        await asyncio.wait((self._verdict,), timeout=_VERDICT_S)
        self.check()

    def connect(self, stream: Stream) -> AgentClient:
        """Return a client of one of the pod's agents; closing the client marks the pod as ending."""
        client = _PodClient(self, *stream)
        self._clients.append(client)
        if self.failed:
            client.fail(self._verdict.result())
        return client

    async def close_connections(self) -> None:
        """Close the connections, which ends the agents and with them the containers."""
        self.ending = True
        await asyncio.gather(*(client.close() for client in self._clients))


class _PodClient(AgentClient):
    def __init__(self, pod: Pod, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        self._pod = pod

    async def close(self) -> None:
        """Mark the pod as ending, so that no cause is looked up, and close the client."""
        self._pod.ending = True
        await super().close()
