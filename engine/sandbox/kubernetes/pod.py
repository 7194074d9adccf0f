"""One pod of ours, in this process's book from before it exists until it is gone."""

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
"""How long a lost connection waits for the cluster to say why."""


class Pod:
    """A pod, its agents' clients, and what the cluster says about it.

    Args:
        name: of the pod; also the sandbox's id.
        spec: what it was made for; a warm one gets another when it is claimed.
        failed: called once, when it turns out to have failed.
    """

    def __init__(self, name: str, spec: SandboxSpec, *, warm: bool, failed: Callable[[Pod], None]) -> None:
        self.name = name
        self.spec = spec
        self.warm = warm
        """Nobody has asked for it yet."""
        self.ready = False
        self.ending = False
        self.node = ""
        self.address = ""
        self.blocked = ""
        """Why it does not come up yet, in the cluster's words."""
        self.startup = Startup(node="")
        self.env: Mapping[str, str] = {}
        """What the image sets."""
        self.api: tuple[str, int] | None = None
        """Host and port of the cluster's API as seen from the pod; None outside a cluster."""
        self.agent: AgentClient | None = None
        self.pristine: AgentClient | None = None
        self._clients: list[AgentClient] = []
        self._failed = failed
        self._verdict: asyncio.Future[SandboxError] = asyncio.get_running_loop().create_future()

    @property
    def failed(self) -> bool:
        """Whether the cluster or a broken connection ended it."""
        return self._verdict.done()

    def observe(self, observed: Json | None) -> None:
        """Take in what the informer saw."""
        if observed is not None:
            self.node, self.address = diagnosis.node(observed), diagnosis.address(observed)
            self.blocked = "" if diagnosis.running(observed) else diagnosis.waiting(observed).reason
        if not self.ending and (error := diagnosis.failure(observed)) is not None:
            self.fail(error)

    def check(self) -> None:
        """Raise what ended it, if anything did."""
        if self._verdict.done():
            raise self._verdict.result()

    def fail(self, error: SandboxError) -> None:
        """Nothing more can be done with it; whoever waits for a reply learns why."""
        if self._verdict.done():
            return
        self._verdict.set_result(error)
        for client in self._clients:
            client.fail(error)
        self._failed(self)

    async def lost(self) -> None:
        """A connection ended: wait a moment for the cluster to say why."""
        if self.ending or self.failed:
            return
        with contextlib.suppress(SandboxError):
            await self.settle()
        if not self.failed:
            self.fail(SandboxDiedError("the sandbox ended while it was in use: its connection was lost"))

    async def settle(self) -> None:
        """Wait a moment for the cluster to say what became of the pod. Raises what ended it, if it ended."""
        await asyncio.wait((self._verdict,), timeout=_VERDICT_S)
        self.check()

    def connect(self, stream: Stream) -> AgentClient:
        """A client of one of its agents; closing it means that the pod is to end."""
        client = _PodClient(self, *stream)
        self._clients.append(client)
        if self.failed:
            client.fail(self._verdict.result())
        return client

    async def hang_up(self) -> None:
        """Close the connections, which ends the agents and with them the containers."""
        self.ending = True
        await asyncio.gather(*(client.close() for client in self._clients))


class _PodClient(AgentClient):
    def __init__(self, pod: Pod, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        self._pod = pod

    async def close(self) -> None:
        """See ``AgentClient.close``; nobody will ask why the connection ended."""
        self._pod.ending = True
        await super().close()
