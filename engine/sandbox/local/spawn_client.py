"""Client of the spawner process: requests sandboxes and waits for their end.

Bound to one event loop and one spawner; the backend creates a new client for another loop, or when ``alive``
is false. ``spawn_server`` is the other end; a new request needs a branch there and a method here.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from engine.errors import SandboxStartError

_SCRIPT = Path(__file__).with_name("spawn_server.py")
_REPLY_S = 30.0


class SpawnClient:
    """A running spawner process; created by ``SpawnClient.start``."""

    def __init__(self, control: socket.socket) -> None:
        self.loop = asyncio.get_running_loop()
        self.alive = True
        self._control = control
        self._started: dict[str, asyncio.Future[int]] = {}
        self._gone: dict[str, asyncio.Future[int | None]] = {}
        self.loop.add_reader(control, self._receive)

    @classmethod
    async def start(cls) -> SpawnClient:
        """Start the spawner process, which ends when this process ends or the socket is closed."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = [sys.executable, "-I", "-S", str(_SCRIPT), str(os.getpid()), str(theirs.fileno())]
        try:
            await asyncio.to_thread(
                subprocess.run, argv, pass_fds=[theirs.fileno()], check=True, stdin=subprocess.DEVNULL, env={}
            )
        except (OSError, subprocess.CalledProcessError) as error:
            ours.close()
            raise SandboxStartError(f"the spawner process did not start: {error}") from error
        finally:
            theirs.close()
        ours.setblocking(False)
        return cls(ours)

    def __del__(self) -> None:
        self._control.close()

    async def spawn(self, request: dict[str, Any], stream: socket.socket, errors: int) -> int:
        """Start a sandbox and return its process id; ``gone`` waits for its end."""
        sandbox = request["id"]
        self._started[sandbox] = self.loop.create_future()
        self._gone[sandbox] = self.loop.create_future()
        try:
            message = json.dumps({"op": "spawn", **request}).encode()
            socket.send_fds(self._control, [message], [stream.fileno(), errors])
            async with asyncio.timeout(_REPLY_S):
                return await self._started[sandbox]
        except (OSError, TimeoutError) as error:
            self._lost()
            raise SandboxStartError(f"the spawner process does not answer: {error}") from error
        finally:
            del self._started[sandbox]

    def kill(self, sandbox: str) -> None:
        """Request a sandbox's immediate end."""
        try:
            self._control.send(json.dumps({"op": "kill", "id": sandbox}).encode())
        except OSError:
            self._lost()

    def is_gone(self, sandbox: str) -> bool:
        """Return whether all processes of the sandbox have ended."""
        return sandbox not in self._gone or self._gone[sandbox].done()

    async def gone(self, sandbox: str) -> int | None:
        """Wait until all processes of the sandbox have ended; return its exit status, None if unknown."""
        future = self._gone.get(sandbox)
        return None if future is None else await asyncio.shield(future)

    def forget(self, sandbox: str) -> None:
        """Drop the record of a sandbox that is gone."""
        self._gone.pop(sandbox, None)

    def _receive(self) -> None:
        try:
            message = self._control.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self._lost()
            return
        event = json.loads(message)
        sandbox = event["id"]
        if event["event"] == "started":
            _resolve(self._started.get(sandbox), event["pid"])
        else:
            _resolve(self._gone.get(sandbox), event["status"])
            _resolve(self._started.get(sandbox), 0)

    def _lost(self) -> None:
        self.alive = False
        self.loop.remove_reader(self._control)
        for future in self._gone.values():
            _resolve(future, None)
        for started in self._started.values():
            _resolve(started, 0)


def _resolve(future: asyncio.Future[Any] | None, value: object) -> None:
    if future is not None and not future.done():
        future.set_result(value)
