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
        """Send what is left and end the stream."""
        self._flush()
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def _flush(self) -> None:
        if self._unsent and not self._writer.is_closing():
            frame = pickle.dumps(self._unsent, pickle.HIGHEST_PROTOCOL)
            self._writer.writelines((_LENGTH.pack(len(frame)), frame))
        self._unsent = []
