"""Places where a server's processes run: this machine, or a node of the Ray cluster."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from engine.inference.vllm.servers.environment import INHERITED, inherited_environment
from engine.processes import guard
from engine.processes.guarded import guarded_command, wait_until_ended
from engine.processes.link import LOOPBACK
from engine.processes.ports import hold_free_port
from engine.ray.node_process import NodeLostError, NodeProcess
from engine.ray.placement import Placement

_KILL_S = 5.0
_PAUSE_S = 0.5
_LEAVE_ZOMBIE = os.WEXITED | os.WNOWAIT


class ServerProcess(Protocol):
    """Interface to the processes of one server, which can be started again once they were stopped."""

    @property
    def is_started(self) -> bool:
        """Return whether it was started, and not stopped since."""

    async def reserve(self, timeout_s: float) -> tuple[str, int]:
        """Return the address on which the next start will listen, and a free port there.

        Raises PreflightError when no machine has room for it within the time.
        """

    def start(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Start the command with its output appended to ``log``."""

    def ending(self) -> str | None:
        """Return how the started command ended, e.g. ``with code 1``; None while it runs."""

    async def stop(self) -> None:
        """End all of its processes; safe to call at any time."""


class LocalProcess:
    """Processes on this machine, in a session of their own; they end with this process."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._port: socket.socket | None = None
        """Holds the port: a server listens only after it has loaded its model."""

    @property
    def pid(self) -> int | None:
        """Process id of the guard, which leads the session; None before the start."""
        return None if self._process is None else self._process.pid

    @property
    def is_started(self) -> bool:
        """Return whether it was started, and not stopped since."""
        return self._process is not None and self._process.returncode is None

    async def reserve(self, timeout_s: float) -> tuple[str, int]:  # noqa: ARG002  # there is room at once
        """Return the loopback interface and a free port of it."""
        self._release_port()
        self._port = hold_free_port(LOOPBACK)
        return LOOPBACK, self._port.getsockname()[1]

    def start(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Start the command in a session of its own."""
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                guarded_command(command),
                env=inherited_environment() | dict(environment),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def ending(self) -> str | None:
        """Return how the guard has ended, None while it runs.

        It stays a zombie until ``stop``: its number, which names the group to be killed, is not given away.
        """
        assert self._process is not None
        found = os.waitid(os.P_PID, self._process.pid, _LEAVE_ZOMBIE | os.WNOHANG)
        return None if found is None else f"with code {found.si_status}"

    async def stop(self) -> None:
        """Ask the command to end, and kill what is left of its session."""
        self._release_port()
        process = self._process
        if process is None or process.returncode is not None:
            return
        if self.ending() is None:
            os.kill(process.pid, signal.SIGTERM)
        ending = asyncio.create_task(asyncio.to_thread(os.waitid, os.P_PID, process.pid, _LEAVE_ZOMBIE))
        await asyncio.wait([ending], timeout=guard.GRACE_S + _KILL_S)
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)  # also what a killed guard left behind
            await ending
            process.wait()
            assert process.stdin is not None
            process.stdin.close()

    def _release_port(self) -> None:
        if self._port is not None:
            self._port.close()
            self._port = None


class RayProcess:
    """Processes on the node that has a bundle of a placement group; they end with this process.

    A node that is lost loses its bundle to another one, where the next start then runs.

    Args:
        placement: the reserved resources.
        bundle: number of the bundle, all of whose resources it takes.
        resources: of the bundle, by Ray's names.
    """

    def __init__(self, placement: Placement, bundle: int, resources: Mapping[str, float]) -> None:
        self._placement, self._bundle, self._resources = placement, bundle, resources
        self._node: NodeProcess | None = None
        self.is_started = False

    async def reserve(self, timeout_s: float) -> tuple[str, int]:
        """Return the address of the bundle's node and a free port there.

        A cluster goes on to place actors on a lost node for some seconds, until it sees the loss.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return await asyncio.to_thread(self._reserve, deadline - time.monotonic())
            except NodeLostError:
                if time.monotonic() + _PAUSE_S >= deadline:
                    raise
                await self.stop()
                await asyncio.sleep(_PAUSE_S)

    def _reserve(self, timeout_s: float) -> tuple[str, int]:
        self._node = NodeProcess(self._placement, self._bundle, self._resources)
        return self._node.reserve(timeout_s)

    def start(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Start the command on the reserved node."""
        assert self._node is not None
        self._node.start(command, environment, inherited=INHERITED, log=log)
        self.is_started = True

    def ending(self) -> str | None:
        """Return how the command or its node ended."""
        assert self._node is not None
        found = self._node.ending()
        return None if found is None else found.text

    async def stop(self) -> None:
        """Ask the command to end, kill what is left, and free the bundle for another start."""
        node, self._node = self._node, None
        is_started, self.is_started = self.is_started, False
        if node is None:
            return

        def stop() -> None:
            if is_started and node.ending() is None:
                node.terminate()
                wait_until_ended([node], time.monotonic() + guard.GRACE_S + _KILL_S)
            node.kill()

        await asyncio.to_thread(stop)
