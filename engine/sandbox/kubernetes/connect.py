"""The byte stream to an agent in a pod: over the pod network, or through the API server's ``pods/exec``.

When a stream ends, whoever reads it should learn why, which the cluster tells a moment later: a stream's end
is held back until its ``ended`` callback returns.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

from engine.sandbox.agent.wire import frame

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Ended = Callable[[], Awaitable[None]]
_LIMIT = 1 << 20
_CONNECT_S = 5.0
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4))


class HeldStream(asyncio.StreamReaderProtocol):
    """A stream whose reader sees the end only after ``ended``."""

    def __init__(self, reader: asyncio.StreamReader, ended: Ended) -> None:
        super().__init__(reader)
        self._ended = ended
        self._ending: asyncio.Task[None] | None = None

    def eof_received(self) -> bool:
        """Close: half a connection is of no use."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Find out why, then tell the reader."""
        self._ending = asyncio.get_running_loop().create_task(self._end(exc))

    async def _end(self, exc: Exception | None) -> None:
        try:
            await self._ended()
        finally:
            super().connection_lost(exc)


async def over_network(host: str, port: int, token: bytes, ended: Ended) -> Stream:
    """Connect to an agent and say the token.

    Raises:
        OSError: nobody listens there (yet), or there is no route.
    """
    reader = asyncio.StreamReader(limit=_LIMIT)
    try:
        async with asyncio.timeout(_CONNECT_S):
            loop = asyncio.get_running_loop()
            transport, protocol = await loop.create_connection(lambda: HeldStream(reader, ended), host, port)
    except TimeoutError:
        raise OSError(f"no connection to {host}:{port} within {_CONNECT_S:g} s") from None
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    transport.write(frame({"token": token}))
    return reader, asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())
