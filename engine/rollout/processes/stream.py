"""Stream of pickled messages between two event loops. What is sent in one turn of the loop is one frame."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import socket
import struct
from multiprocessing.connection import Connection
from typing import Any, Self

_LENGTH = struct.Struct("!Q")
_LIMIT_BYTES = 1 << 22
_CLOSE_S = 1.0
"""Maximum time for a peer to take what was sent before the stream's end, seconds."""


class StreamEndedError(Exception):
    """The other side has ended the stream."""


class MessageStream:
    """Messages to and from another process; create it with ``over``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._loop = asyncio.get_running_loop()
        self._unsent: list[Any] = []

    @classmethod
    async def over(cls, connection: Connection) -> Self:
        """Return a stream that takes over a connection whose peer has proven itself."""
        peer = socket.socket(fileno=os.dup(connection.fileno()))
        connection.close()
        return cls(*await asyncio.open_connection(sock=peer, limit=_LIMIT_BYTES))

    def send(self, message: Any) -> None:
        """Send a message; without a peer it is dropped."""
        self._unsent.append(message)
        if len(self._unsent) == 1:
            self._loop.call_soon(self._flush)

    async def receive(self) -> list[Any]:
        """Return the messages of the next frame. Raises StreamEndedError."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            frame = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise StreamEndedError(str(error)) from error
        messages: list[Any] = pickle.loads(frame)  # noqa: S301 - the peer has proven that it has the key
        return messages

    async def close(self) -> None:
        """Send what is left, as far as the peer takes it soon, and end the stream."""
        self._flush()
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._writer.wait_closed()
        self._writer.transport.abort()

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if not unsent or self._writer.is_closing():
            return
        try:
            frame = pickle.dumps(unsent, pickle.HIGHEST_PROTOCOL)
        except Exception:
            self._writer.close()  # both sides take the other for lost, so that nobody waits for an answer
            raise
        self._writer.writelines((_LENGTH.pack(len(frame)), frame))
