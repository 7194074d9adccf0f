"""pods/exec over websockets (subprotocol ``v5.channel.k8s.io``).

The first byte of a websocket's message is its channel: 0 stdin, 1 stdout, 2 stderr, 3 how it ended (a
``Status``), 255 closes the channel that the next byte names.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING

from aiohttp import WSMsgType, web

from engine.errors import SandboxError
from tests.fakes.cluster.api.calls import Call
from tests.fakes.cluster.api.errors import internal, not_found
from tests.fakes.cluster.api.resources import PODS, Object

if TYPE_CHECKING:
    from tests.fakes.cluster.nodes.kubelet import Kubelet

_V5 = "v5.channel.k8s.io"
_STDIN, _STDOUT, _STDERR, _ERROR, _CLOSE = 0, 1, 2, 3, 255
_CHUNK = 32 * 1024

Process = asyncio.subprocess.Process


async def execute(kubelet: Kubelet, call: Call, request: web.BaseRequest) -> web.StreamResponse:
    """Serve one exec from the handshake to the exit status.

    A request that does not accept ``*/*`` is answered 406, in the words of the API server's router.

    Raises:
        ApiError: 404 without the pod, 500 where no such container runs or the command cannot be started.
    """
    record = kubelet.store.get(PODS, call.namespace, call.name)
    if record is None:
        raise not_found(PODS, call.name)
    accepted = request.headers.get("Accept", "*/*").split(",")
    if all(kind.partition(";")[0].strip() != "*/*" for kind in accepted):
        return web.Response(status=406, text="406: Not Acceptable\n\nAvailable representations: */*")
    command = request.query.getall("command")
    worker, name = kubelet.workers.get(record.uid), call.query.get("container", "")
    container = worker.find(name) if worker else None
    if container is None or not container.running:
        raise internal(f'unable to upgrade connection: container not found ("{name}")')
    try:
        process = await container.spawn(command, stdin=call.flag("stdin"))
    except (SandboxError, OSError) as error:
        raise internal(f"error executing command in container: {error}") from None
    socket = web.WebSocketResponse(protocols=(_V5,), max_msg_size=0, compress=False)
    await socket.prepare(request)
    await socket.send_bytes(bytes([_STDOUT]))
    await _carry(_Streams(socket), process, command)
    await socket.close()
    return socket


class _Streams:
    def __init__(self, socket: web.WebSocketResponse) -> None:
        self._socket = socket

    async def send(self, channel: int, data: bytes) -> None:
        await self._socket.send_bytes(bytes([channel]) + data)

    async def receive(self) -> bytes | None:
        """Bytes for stdin, empty ones at its end; None when the client has left."""
        async for message in self._socket:
            data: bytes = message.data if message.type is WSMsgType.BINARY else b""
            if data[:1] == bytes([_STDIN]) and data[1:]:
                return data[1:]
            if data == bytes([_CLOSE, _STDIN]):
                return b""
        return None


async def _carry(streams: _Streams, process: Process, command: list[str]) -> None:
    assert process.stdout is not None
    assert process.stderr is not None
    listening = asyncio.create_task(_receive(streams, process))
    sending = asyncio.gather(
        _send(streams, _STDOUT, process, process.stdout),
        _send(streams, _STDERR, process, process.stderr),
    )
    try:
        await asyncio.wait((listening, sending), return_when=asyncio.FIRST_COMPLETED)
        if not sending.done() or sending.exception() is not None:
            return  # the client is gone; the command goes on without it, with its stdin at an end
        code = await process.wait()
        status = json.dumps(_status(code, command)).encode()
        with contextlib.suppress(ConnectionError):
            await streams.send(_ERROR, status)
    finally:
        if process.stdin is not None:
            process.stdin.close()
        for task in (listening, sending):
            task.cancel()
        await asyncio.gather(listening, sending, return_exceptions=True)


async def _send(streams: _Streams, channel: int, process: Process, reader: asyncio.StreamReader) -> None:
    while data := await reader.read(_CHUNK):
        await streams.send(channel, data)
    if process.stdin is not None:
        process.stdin.close()  # containerd closes stdin with the first output stream that ends


async def _receive(streams: _Streams, process: Process) -> None:
    while (data := await streams.receive()) is not None:
        if process.stdin is None:
            continue
        with contextlib.suppress(OSError):
            if data:
                process.stdin.write(data)
                await process.stdin.drain()
            else:
                process.stdin.close()


def _status(code: int, command: list[str]) -> Object:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    shown = f"command terminated with non-zero exit code: error executing command {command}, exit code {code}"
    return {
        "metadata": {},
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": shown,
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }
