"""Processes on nodes of the cluster, each started by an actor that lives as long as they do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from engine.processes import guard
from engine.ray.cluster import TOKEN, connect
from engine.ray.placement import Placement


class ProcessActor:
    """Actor: runs one command on its node. The command ends with the actor, however that ends.

    Nodes get this class by value, so that their own Python need not find this package.
    """

    def address(self) -> str:
        """Return the IP address of the node."""
        import ray

        address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        return address

    def run(self, guard_script: str, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run a command to its end; return its exit code."""
        interface = self._interface()
        network = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface} if interface else {}
        inherited = {name: value for name, value in os.environ.items() if name != TOKEN}
        guarded = subprocess.Popen(
            [sys.executable, "-I", guard_script, *command],
            env={**network, **inherited, **environment},
            stdin=subprocess.PIPE,  # its end tells the guard that this actor is gone
            start_new_session=True,
        )
        return guarded.wait()

    def _interface(self) -> str:
        """Return the name of the network interface with the node's address; empty if none has it."""
        import psutil

        address = self.address()
        for name, found in psutil.net_if_addrs().items():
            if any(one.family == socket.AF_INET and one.address == address for one in found):
                return str(name)
        return ""


@dataclass(frozen=True, slots=True)
class Ending:
    """End of a process."""

    text: str
    """Its circumstances, after "it ended"."""
    is_lost: bool
    """Whether the process was killed, by a signal or with its node, and did not end by itself."""


class NodeProcess:
    """A process on a node of the cluster; it ends with its node and with this process.

    Args:
        placement: the reserved resources.
        bundle: number of the bundle that it takes its resources from.
        resources: its share of the bundle, by Ray's names.
    """

    def __init__(self, placement: Placement, bundle: int, resources: Mapping[str, float]) -> None:
        ray = connect()
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        rest = dict(resources)
        self._actor = (
            ray.remote(ProcessActor)
            .options(
                num_cpus=rest.pop("CPU", 0),
                num_gpus=rest.pop("GPU", 0),
                resources=rest,
                scheduling_strategy=placement.bundle(bundle),
            )
            .remote()
        )
        self._running: Any = None

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start a command, with the node's environment and these variables; called once."""
        self._running = self._actor.run.remote(guard.__file__, list(command), dict(environment))

    def ending(self) -> Ending | None:
        """Return the end of the started process; None while it starts or runs."""
        ray = connect()
        if not ray.wait([self._running], timeout=0)[0]:
            return None
        try:
            status = guard.returned_status(ray.get(self._running))
        except ray.exceptions.RayError as error:
            return Ending(f"with its actor: {str(error).strip().splitlines()[0]}", is_lost=True)
        return Ending(f"with code {status}", is_lost=status < 0)

    def kill(self) -> None:
        """Kill the process and its descendants; no effect if it has ended."""
        ray = connect()
        with suppress(ray.exceptions.RayError):
            ray.kill(self._actor)


def wait_until_ended(processes: Sequence[NodeProcess], deadline: float) -> bool:
    """Wait until all processes have ended; return False when the deadline (monotonic) came first."""
    while any(process.ending() is None for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
