"""Sandboxes that flood their error output are disconnected, on every kind of stream."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any, ClassVar

import aiohttp

from engine.sandbox.docker.attach import attach
from engine.sandbox.docker.daemon import Address
from engine.sandbox.kubernetes.connect import _pump


async def ignore_end() -> None:
    """Ignore the end of the connection."""


async def test_container_flooding_its_error_output_is_disconnected(tmp_path: Path) -> None:
    sent = 0
    cut = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 UPGRADED\r\n\r\n\x01\0\0\0\0\0\0\x05hello")
        try:
            while sent < 64 << 20:
                writer.write(b"\x02\0\0\0\0\x01\0\0" + b"x" * (1 << 16))
                await writer.drain()
                sent += 1 << 16
        except OSError:
            pass
        writer.close()
        cut.set()

    path = tmp_path / "docker.sock"
    async with await asyncio.start_unix_server(serve, path):
        reader, writer, stream = await attach(Address(f"unix://{path}"), "1.41", "c", ignore_end)
        async with asyncio.timeout(120):
            assert await reader.read() == b"hello", "what it said before is there, then comes the end"
            await cut.wait()
        writer.close()
    assert len(stream.stderr) == 4096
    assert sent < 8 << 20


class Websocket:
    """Fake websocket of an exec that delivers the given messages."""

    protocol: ClassVar[str] = "v5.channel.k8s.io"

    def __init__(self, *messages: bytes) -> None:
        self.messages = list(messages)
        self.closed = False

    def __aiter__(self) -> Websocket:
        return self

    async def __anext__(self) -> aiohttp.WSMessage:
        await asyncio.sleep(0)
        if not self.messages:
            raise StopAsyncIteration
        return aiohttp.WSMessage(aiohttp.WSMsgType.BINARY, self.messages.pop(0), None)

    async def send_bytes(self, _data: bytes) -> None:
        """Discard the data."""

    async def close(self) -> None:
        self.closed = True


async def test_exec_flooding_its_error_output_is_disconnected() -> None:
    websocket: Any = Websocket(b"", b"\x01hello", *[b"\x02" + b"x" * (1 << 16)] * 64)
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    async with asyncio.timeout(120):
        await _pump(websocket, *await asyncio.open_connection(sock=theirs))
        assert await reader.read() == b"hello"
    writer.close()
    assert websocket.closed
    assert len(websocket.messages) == 64 - 17
