"""Byte stream to a container's stdin and stdout, without the exec API.

Docker's attach is an HTTP request that turns into a raw connection. Bytes written to it are the container's
stdin; bytes read from it are chunks with an eight-byte header (``1`` stdout, ``2`` stderr; length).
``attach`` runs on the event loop, so that a thousand attached sandboxes need no thread. Only stdout reaches
the reader; the beginning of stderr is kept to explain why the container ended. Attach before the start, so
that no output is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from engine.errors import SandboxTransportError
from engine.sandbox.docker.daemon import Address
from engine.sandbox.responses import STDERR_BYTES

_HEADER = 8
_STDERR = 2
_KEPT = 4096
_ANSWER_S = 60.0
_LIMIT = 1 << 20


class AttachedStream(asyncio.StreamReaderProtocol):
    """Protocol that reads the attach response, then feeds the container's stdout to a reader.

    Args:
        reader: receives stdout.
        on_connection_lost: awaited before the reader sees the end; may determine the cause.
    """

    def __init__(
        self, reader: asyncio.StreamReader, on_connection_lost: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__(reader)
        loop = asyncio.get_running_loop()
        self.accepted: asyncio.Future[None] = loop.create_future()
        self.stderr = b""
        self._stderr_bytes = 0
        self._link: asyncio.BaseTransport | None = None
        self._event_loop = loop
        self._on_connection_lost = on_connection_lost
        self._pending = b""
        self._left = 0
        self._kind = 0
        self._ending: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport so that it can be closed."""
        self._link = transport
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Handle bytes of the attach response or of the stream."""
        if self._pending:
            data = self._pending + data
            self._pending = b""
        if not self.accepted.done():
            head, end, data = data.partition(b"\r\n\r\n")
            if not end:
                self._pending = head
                return
            self._answer(head, data)
        if not self.accepted.cancelled() and self.accepted.exception() is None:
            self._stream(data)

    def _answer(self, head: bytes, body: bytes) -> None:
        status = head.split(None, 2)[1:2]
        if status in ([b"101"], [b"200"]):
            self.accepted.set_result(None)
        else:
            text = (head + b" " + body).decode(errors="replace")
            self.accepted.set_exception(SandboxTransportError(f"Docker refused to attach: {text}"))

    def _stream(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            if self._left == 0:
                if len(data) - at < _HEADER:
                    self._pending = data[at:]
                    return
                self._kind = data[at]
                self._left = int.from_bytes(data[at + 4 : at + _HEADER], "big")
                at += _HEADER
                continue
            part = data[at : at + self._left]
            self._left -= len(part)
            at += len(part)
            if self._kind == _STDERR:
                self._stderr_received(part)
            else:
                super().data_received(part)

    def _stderr_received(self, part: bytes) -> None:
        self.stderr += part[: _KEPT - len(self.stderr)]
        self._stderr_bytes += len(part)
        if self._stderr_bytes > STDERR_BYTES and isinstance(self._link, asyncio.WriteTransport):
            self._link.abort()

    def eof_received(self) -> bool:
        """Close the connection when either direction ends."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Determine the cause, then end the reader."""
        if not self.accepted.done():
            self.accepted.set_exception(SandboxTransportError("Docker closed the connection"))
        self._ending = self._event_loop.create_task(self._end(exc))

    async def _end(self, exc: Exception | None) -> None:
        try:
            await self._on_connection_lost()
        finally:
            super().connection_lost(exc)


async def attach(
    address: Address, api_version: str, container: str, on_connection_lost: Callable[[], Awaitable[None]]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, AttachedStream]:
    """Connect to a container that was created with an open stdin and not yet started.

    Args:
        address: the daemon's address.
        api_version: e.g. ``1.41``.
        container: the container's id.
        on_connection_lost: see ``AttachedStream``.

    Raises:
        SandboxTransportError: the daemon cannot be reached or refuses.
    """
    reader = asyncio.StreamReader(limit=_LIMIT)
    try:
        transport, protocol = await address.connect(lambda: AttachedStream(reader, on_connection_lost))
    except OSError as error:
        raise SandboxTransportError(f"cannot reach the Docker daemon at {address.url}: {error}") from error
    query = "stream=1&stdin=1&stdout=1&stderr=1"
    transport.write(
        f"POST /v{api_version}/containers/{container}/attach?{query} HTTP/1.1\r\n"
        "Host: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n".encode()
    )
    try:
        async with asyncio.timeout(_ANSWER_S):
            await protocol.accepted
    except TimeoutError:
        transport.abort()
        raise SandboxTransportError("Docker did not answer the request to attach") from None
    except BaseException:
        transport.abort()
        raise
    writer = asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())
    return reader, writer, protocol
