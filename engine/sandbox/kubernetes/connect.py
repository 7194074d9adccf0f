"""Byte stream to an agent in a pod: over the pod network, or through the API server's ``pods/exec``.

The cluster reports why a stream ended only a moment later. The reader therefore sees the end only after the
``on_connection_lost`` callback has returned.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence

import aiohttp

from engine.sandbox.agent.wire import frame
from engine.sandbox.kubernetes.api.client import EXEC_PROTOCOLS, KubeApi
from engine.sandbox.responses import STDERR_BYTES

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
OnConnectionLost = Callable[[], Awaitable[None]]
_LIMIT = 1 << 20
_CONNECT_S = 5.0
_MESSAGE = 1 << 15
_STDIN, _STDOUT, _STDERR, _STATUS, _HALF_CLOSE = 0, 1, 2, 3, 255
_pumps: set[asyncio.Task[None]] = set()
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4))


class HeldStream(asyncio.StreamReaderProtocol):
    """Stream whose reader sees the end only after ``on_connection_lost`` has finished."""

    def __init__(self, reader: asyncio.StreamReader, on_connection_lost: OnConnectionLost) -> None:
        super().__init__(reader)
        self._on_connection_lost = on_connection_lost
        self._ending: asyncio.Task[None] | None = None

    def eof_received(self) -> bool:
        """Close the connection: half-open connections are not used."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Find out the reason, then signal the end to the reader."""
        self._ending = asyncio.get_running_loop().create_task(self._end(exc))

    async def _end(self, exc: Exception | None) -> None:
        try:
            await self._on_connection_lost()
        finally:
            super().connection_lost(exc)


async def over_network(host: str, port: int, token: bytes, on_connection_lost: OnConnectionLost) -> Stream:
    """Connect to an agent over the pod network and send the token.

    Raises:
        OSError: nothing listens there (yet), or there is no route.
    """
    reader = asyncio.StreamReader(limit=_LIMIT)
    try:
        async with asyncio.timeout(_CONNECT_S):
            loop = asyncio.get_running_loop()
            transport, protocol = await loop.create_connection(
                lambda: HeldStream(reader, on_connection_lost), host, port
            )
    except TimeoutError:
        raise OSError(f"no connection to {host}:{port} within {_CONNECT_S:g} s") from None
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    transport.write(frame({"token": token}))
    return reader, asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())


async def over_exec(
    api: KubeApi, pod: str, container: str, argv: Sequence[str], on_connection_lost: OnConnectionLost
) -> Stream:
    """Start an agent by ``pods/exec`` and connect to its stdin and stdout.

    Args:
        pod: the pod's API path.
        argv: the agent's command line.

    Raises:
        ApiError: the API server refuses.
    """
    websocket = await api.exec(pod, container, argv)
    ours, theirs = socket.socketpair()
    reader = asyncio.StreamReader(limit=_LIMIT)
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_connection(
        lambda: HeldStream(reader, on_connection_lost), sock=ours
    )
    inner = await asyncio.open_connection(sock=theirs, limit=_LIMIT)
    pump = loop.create_task(_pump(websocket, *inner))
    _pumps.add(pump)
    pump.add_done_callback(_pumps.discard)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def _pump(
    websocket: aiohttp.ClientWebSocketResponse, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Copy bytes between a socket and an exec's websocket until either ends."""
    outward = asyncio.create_task(_to_stdin(reader, websocket))
    stderr_bytes = 0
    try:
        async for message in websocket:
            if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if channel == _STDOUT and data:
                writer.write(data)
                await writer.drain()
            elif channel == _STDERR:
                stderr_bytes += len(data)
            if channel == _STATUS or stderr_bytes > STDERR_BYTES:
                break
    except (OSError, aiohttp.ClientError):
        pass  # the reader sees the end of the stream
    finally:
        outward.cancel()
        await asyncio.gather(outward, return_exceptions=True)
        writer.close()
        await websocket.close()


async def _to_stdin(reader: asyncio.StreamReader, websocket: aiohttp.ClientWebSocketResponse) -> None:
    # Small messages: servers cut connections that send tens of megabytes in one.
    while data := await reader.read(_MESSAGE):
        await websocket.send_bytes(bytes([_STDIN]) + data)
    if websocket.protocol == EXEC_PROTOCOLS[0]:
        await websocket.send_bytes(bytes([_HALF_CLOSE, _STDIN]))
    else:  # v4 has no message for the end of stdin
        await websocket.close()
