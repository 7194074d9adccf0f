"""Processes on nodes of the cluster, each started by an actor that lives as long as they do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from engine.errors import NodeLostError, PreflightError
from engine.processes import guard
from engine.processes.guarded import ALL, Ending
from engine.processes.ports import hold_free_port
from engine.ray.cluster import TOKEN, connect
from engine.ray.placement import Placement


class ProcessActor:
    """Actor: runs one command on its node. The command ends with the actor, however that ends.

    Nodes get this class by value, so that their own Python need not find this package.
    """

    _guarded: subprocess.Popen[bytes] | None = None
    _port: socket.socket | None = None

    def address(self) -> str:
        """Return the IP address of the node."""
        import ray

        address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        return address

    def free_port(self) -> int:
        """Return a free TCP port of the node's address, which nobody else is given while the actor lives."""
        self._port = hold_free_port(self.address())
        port: int = self._port.getsockname()[1]
        return port

    def run(
        self,
        guard_script: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        inherited: Sequence[str],
        log: str,
    ) -> int:
        """Run a command to its end; return its exit code. Arguments as of ``NodeProcess.start``."""
        interface = self._interface()
        network = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface} if interface else {}
        kept = {
            name: value
            for name, value in os.environ.items()
            if name != TOKEN and any(fnmatchcase(name, pattern) for pattern in inherited)
        }
        with ExitStack() as stack:
            output = stack.enter_context(Path(log).open("ab")) if log else None
            self._guarded = subprocess.Popen(
                [sys.executable, "-I", guard_script, *command],
                env={**network, **kept, **environment},
                stdin=subprocess.PIPE,  # its end tells the guard that this actor is gone
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return self._guarded.wait()

    def terminate(self) -> None:
        """Ask the command to end; no effect before its start."""
        if self._guarded is not None:
            self._guarded.terminate()

    def _interface(self) -> str:
        """Return the name of the network interface with the node's address; empty if none has it."""
        import psutil

        address = self.address()
        for name, found in psutil.net_if_addrs().items():
            if any(one.family == socket.AF_INET and one.address == address for one in found):
                return str(name)
        return ""


class NodeProcess:
    """A process on a node of the cluster; it ends with its node and with this process.

    Args:
        placement: the reserved resources.
        bundle: number of the bundle that it takes its resources from.
        resources: its share of the bundle, by Ray's names.
    """

    def __init__(self, placement: Placement, bundle: int, resources: Mapping[str, float]) -> None:
        ray = connect()
        for module in (__name__, hold_free_port.__module__):
            ray.cloudpickle.register_pickle_by_value(sys.modules[module])
        rest = dict(resources)
        self._actor = (
            ray.remote(ProcessActor)
            .options(
                num_cpus=rest.pop("CPU", 0),
                num_gpus=rest.pop("GPU", 0),
                resources=rest,
                scheduling_strategy=placement.bundle(bundle),
                max_concurrency=2,  # it can be told to end what it runs
            )
            .remote()
        )
        self._running: Any = None

    def reserve(self, timeout_s: float) -> tuple[str, int]:
        """Return the IP address of the node and a free TCP port there.

        Raises PreflightError if the process has no node within the time, NodeLostError if it lost it.
        """
        ray = connect()
        asked = [self._actor.address.remote(), self._actor.free_port.remote()]
        try:
            address, port = ray.get(asked, timeout=timeout_s)
        except ray.exceptions.GetTimeoutError:
            raise PreflightError(f"the Ray cluster has no node for it within {timeout_s:g} s") from None
        except ray.exceptions.RayError as error:
            raise NodeLostError(f"its node was lost: {_first_line(error)}") from error
        return address, port

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        inherited: Sequence[str] = ALL,
        log: Path | None = None,
    ) -> None:
        """Start a command, as ``Process.start``; without a log its output is in the cluster's."""
        self._running = self._actor.run.remote(
            guard.__file__, list(command), dict(environment), list(inherited), str(log or "")
        )

    def ending(self) -> Ending | None:
        """Return the end of the started process; None while it starts or runs."""
        ray = connect()
        if not ray.wait([self._running], timeout=0)[0]:
            return None
        try:
            status = ray.get(self._running)
        except ray.exceptions.RayTaskError as error:
            return Ending(f"before its start: {error.cause}", is_lost=False)
        except ray.exceptions.RayError as error:
            return Ending(f"with its actor: {_first_line(error)}", is_lost=True)
        return Ending.of_status(status)

    def terminate(self) -> None:
        """Ask the command to end by itself; no effect if it has ended."""
        self._actor.terminate.remote()

    def kill(self) -> None:
        """Kill the process and its descendants; no effect if it has ended."""
        ray = connect()
        with suppress(ray.exceptions.RayError):
            ray.kill(self._actor)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
