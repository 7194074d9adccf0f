"""The streams of a pods/exec over SPDY/3.1, as kubectl before 1.30 opens them (and newer ones on demand).

Only what exec needs of the protocol: the client opens the streams that its query asks for in the order error,
stdin, stdout, stderr, so that their header blocks need not be read, and there is no flow control.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence

from aiohttp import web

_VERSION = 3
_SYN_STREAM, _SYN_REPLY, _PING, _GOAWAY = 1, 2, 6, 7
_FIN = 1
_HEAD = 8
_NO_HEADERS = bytes(4)
_TRIES, _TRY_EVERY_S = 600, 0.05


class Frames:
    """Cuts what the client sends into frames; an HTTP connection's parser once it was upgraded."""

    def __init__(
        self, control: Callable[[int, bytes], None], data: Callable[[int, int, bytes], None]
    ) -> None:
        self._control = control
        self._data = data
        self._pending = b""
        self.ended = asyncio.Event()

    def feed_data(self, received: bytes) -> tuple[bool, bytes]:
        """Take the next bytes; says that there is more to come, and that none are left over."""
        self._pending += received
        while len(self._pending) >= _HEAD:
            size = _HEAD + int.from_bytes(self._pending[5:8], "big")
            if len(self._pending) < size:
                break
            frame, self._pending = self._pending[:size], self._pending[size:]
            if frame[0] & 0x80:
                self._control(int.from_bytes(frame[2:4], "big"), frame[_HEAD:])
            else:
                self._data(int.from_bytes(frame[:4], "big"), frame[4], frame[_HEAD:])
        return False, b""

    def feed_eof(self) -> None:
        """The client is gone."""
        self.ended.set()

    def set_exception(self, *_: object) -> None:
        """The connection broke."""
        self.ended.set()


class SpdyStreams:
    """One exec's streams. ``channels`` are those that the client will open, in its order."""

    def __init__(self, request: web.BaseRequest, channels: Sequence[int]) -> None:
        self._request = request
        self._awaited = list(channels)
        self._ids: dict[int, int] = {}
        self._incoming: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        self._headers = zlib.compressobj()
        self.frames = Frames(self._controlled, self._received)

    async def prepare(self, protocol: str) -> web.StreamResponse:
        """Upgrade the connection and wait for the client's streams. Raises ConnectionError."""
        headers = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1", "X-Stream-Protocol-Version": protocol}
        response = web.StreamResponse(status=101, headers=headers)
        response.force_close()
        self._request.protocol.set_parser(self.frames)  # type: ignore[arg-type]  # any parser will do
        await response.prepare(self._request)
        for _ in range(_TRIES):
            if not self._awaited or self.frames.ended.is_set():
                break
            await asyncio.sleep(_TRY_EVERY_S)
        if self._awaited:
            raise ConnectionResetError("the client did not open its streams")
        return response

    async def receive(self) -> tuple[int, bytes] | None:
        """Return the next data and their channel (none at a stream's end); None when the client is gone."""
        queued = asyncio.create_task(self._incoming.get())
        ended = asyncio.create_task(self.frames.ended.wait())
        try:
            await asyncio.wait((queued, ended), return_when=asyncio.FIRST_COMPLETED)
            return queued.result() if queued.done() else None
        finally:
            queued.cancel()
            ended.cancel()

    async def send(self, channel: int, data: bytes, *, last: bool = False) -> None:
        """Send data, or the end, of a channel; nothing where the client has not asked for it."""
        if (stream := self._ids.get(channel)) is not None:
            self._write(stream.to_bytes(4, "big") + bytes([_FIN if last else 0]), data)

    def _write(self, head: bytes, body: bytes) -> None:
        transport = self._request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client is gone")
        transport.write(head + len(body).to_bytes(3, "big") + body)

    def _control_frame(self, kind: int, body: bytes) -> None:
        self._write(bytes([0x80, _VERSION]) + kind.to_bytes(2, "big") + b"\0", body)

    def _controlled(self, kind: int, body: bytes) -> None:
        if kind == _SYN_STREAM:
            stream = int.from_bytes(body[:4], "big") & 0x7FFFFFFF
            if self._awaited:
                self._ids[self._awaited.pop(0)] = stream
            block = self._headers.compress(_NO_HEADERS) + self._headers.flush(zlib.Z_SYNC_FLUSH)
            self._control_frame(_SYN_REPLY, stream.to_bytes(4, "big") + block)
        elif kind == _PING:
            self._control_frame(_PING, body)
        elif kind == _GOAWAY:
            self.frames.ended.set()

    def _received(self, stream: int, flags: int, data: bytes) -> None:
        channel = next((channel for channel, opened in self._ids.items() if opened == stream), None)
        if channel is None:
            return
        if data:
            self._incoming.put_nowait((channel, data))
        if flags & _FIN:
            self._incoming.put_nowait((channel, b""))
