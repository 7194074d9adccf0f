"""A container's agent port: the token handshake of ``engine.sandbox.agent.listen``, then the bytes of the
local sandbox's agent, untouched.

The port closes with the first client that knows the token; when that client leaves, the agent has ended and
with it the container.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import random
from collections.abc import Mapping

from engine.sandbox.agent.wire import decode, frame
from tests.fakes.cluster.nodes.processes import Inside

_HANDSHAKE_S = 5.0
_MAX_FIRST = 1024
_TRIES, _TRY_EVERY_S = 200, 0.05
_CHUNK = 1 << 18
_HOSTS = 254

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class AgentPort:
    """Listens on a pod's address for the one client of a container's agent.

    Args:
        host: address below 127.0.0.0/8.
        token: what a client must know.
    """

    def __init__(self, host: str, port: int, token: bytes) -> None:
        self.host = host
        self.port = port
        self._token = token
        self._server: asyncio.Server | None = None
        self._accepted: asyncio.Future[Stream] = asyncio.get_running_loop().create_future()

    async def listen(self) -> None:
        """Open the port. Raises OSError when the address is taken."""
        self._server = await asyncio.start_server(self._connected, self.host, self.port, limit=_CHUNK)

    async def client(self) -> Stream:
        """The client, once it has come."""
        return await self._accepted

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not await self._knows(reader) or self._accepted.done():
            writer.close()
            return
        self._accepted.set_result((reader, writer))
        self._close_port()

    async def _knows(self, reader: asyncio.StreamReader) -> bool:
        try:
            async with asyncio.timeout(_HANDSHAKE_S):
                size = int.from_bytes(await reader.readexactly(4), "big")
                if size > _MAX_FIRST:
                    return False
                said = decode(await reader.readexactly(size))
        except (OSError, ValueError, asyncio.IncompleteReadError):
            return False
        offered = said.get("token") if isinstance(said, dict) else None
        return isinstance(offered, bytes) and hmac.compare_digest(offered, self._token)

    def _close_port(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def close(self) -> list[asyncio.StreamWriter]:
        """Close the port; returns the connections that are still open."""
        self._close_port()
        self._accepted.cancel()
        return [] if self._accepted.cancelled() else [self._accepted.result()[1]]


class Relay:
    """Makes a port inside a sandbox reachable at the pod's address, without looking at what passes."""

    def __init__(self, host: str, port: int, inside: Inside) -> None:
        self.host = host
        self.port = port
        self._inside = inside
        self._server: asyncio.Server | None = None
        self._clients: list[asyncio.StreamWriter] = []

    async def listen(self, process: asyncio.subprocess.Process) -> None:
        """Open the port as soon as ``process`` listens on its own. Raises OSError when it never does."""
        for _ in range(_TRIES):
            try:
                (await self._inside.connect(self.port)).close()
                break
            except ConnectionRefusedError:
                if process.returncode is not None:
                    return
                await asyncio.sleep(_TRY_EVERY_S)
        self._server = await asyncio.start_server(self._connected, self.host, self.port, limit=_CHUNK)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients.append(writer)
        try:
            inner = await asyncio.open_connection(sock=await self._inside.connect(self.port), limit=_CHUNK)
        except OSError:
            writer.close()
            return
        await splice((reader, writer), inner)
        inner[1].close()
        writer.close()

    def close(self) -> list[asyncio.StreamWriter]:
        """Close the port; returns the connections that are still open."""
        if self._server is not None:
            self._server.close()
            self._server = None
        return self._clients


def greet(writer: asyncio.StreamWriter, pid: int, env: Mapping[str, str]) -> None:
    """Send the agent's greeting in the name of an agent that has already greeted somebody else."""
    writer.write(frame({"hello": 1, "pid": pid, "env": dict(env)}))


async def splice(client: Stream, agent: Stream) -> bool:
    """Carry bytes both ways until one side ends; True when it was the client that left."""
    inward = asyncio.create_task(_carry(client[0], agent[1]))
    outward = asyncio.create_task(_carry(agent[0], client[1]))
    try:
        done, _ = await asyncio.wait((inward, outward), return_when=asyncio.FIRST_COMPLETED)
        return inward in done
    finally:
        for task in (inward, outward):
            task.cancel()
        await asyncio.gather(inward, outward, return_exceptions=True)


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()


class Addresses:
    """Hands out addresses below 127.0.0.0/8, each once, that other clusters of this machine hardly use."""

    def __init__(self) -> None:
        draw = random.SystemRandom()
        self._second = draw.randrange(64, 250)
        self._next = draw.randrange(_HOSTS**2)

    def take(self) -> str:
        """Return a new address."""
        self._next = (self._next + 1) % _HOSTS**2
        third, fourth = divmod(self._next, _HOSTS)
        return f"127.{self._second}.{third + 1}.{fourth + 1}"
