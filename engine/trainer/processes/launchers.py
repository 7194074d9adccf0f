"""Places where the processes of a trainer's ranks run: this machine, machines of others, a Ray cluster."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Protocol

from torch.distributed import TCPStore  # type: ignore[attr-defined]

import engine
from engine.config.placement import rank_bundles
from engine.config.trainer import TrainerConfig
from engine.errors import RankLostError, TrainerError
from engine.processes.guarded import Ending, wait_until_ended
from engine.processes.link import LOOPBACK
from engine.ray.cluster import own_address
from engine.ray.node_process import NodeProcess
from engine.ray.placement import Notice, Placement
from engine.threads import waiting_threads
from engine.trainer.processes.link import ADDRESS, KEY, RankListener, read_address, read_key

_COMMAND = (sys.executable, "-m", "engine.trainer", "rank")


class RankLauncher(Protocol):
    """Interface to start and end the processes of all ranks of a trainer."""

    def listen(self) -> RankListener:
        """Return the listener to which the ranks will connect. Raises TrainerError."""

    def start(self, size: int, listener: RankListener) -> None:
        """Start the ranks. Raises PreflightError, TrainerError."""

    def check(self) -> None:
        """Raise TrainerError if a rank has ended; called while ranks start."""

    def kill(self) -> None:
        """End all ranks at once; may be called from another thread."""

    def close(self, deadline: float) -> None:
        """Wait until the ranks have ended by themselves; kill those left at the deadline (monotonic)."""


class LocalRanks:
    """Child processes of this one."""

    def __init__(self) -> None:
        self._key = secrets.token_hex(32)
        self.processes: list[subprocess.Popen[bytes]] = []

    def listen(self) -> RankListener:
        """Return a listener on the loopback interface."""
        return RankListener(self._key.encode())

    def start(self, size: int, listener: RankListener) -> None:
        """Start the ranks; they meet in a store of this process."""
        self._store, port = _open_store(LOOPBACK, size)
        loopback = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
        path = os.pathsep.join(filter(None, sys.path))
        for rank in range(size):
            own = _environment(rank, size, rank, (LOOPBACK, port), listener.address, self._key)
            environment = {**loopback, **os.environ, **own, "PYTHONPATH": path}
            self.processes.append(subprocess.Popen(_COMMAND, env=environment, stdin=subprocess.DEVNULL))

    def check(self) -> None:
        """Raise TrainerError if a rank has ended."""
        for rank, process in enumerate(self.processes):
            if process.poll() is not None:
                raise _ended_early(rank, Ending.of_status(process.returncode))

    def kill(self) -> None:
        """Kill all ranks."""
        for process in self.processes:
            process.kill()

    def close(self, deadline: float) -> None:
        """Wait for the ranks, and kill those left."""
        for process in self.processes:
            try:
                process.wait(timeout=max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class TorchrunRanks:
    """Processes that ``torchrun`` starts by hand, on any number of machines."""

    def listen(self) -> RankListener:
        """Return a listener on the address that the environment names."""
        return RankListener(read_key(), read_address())

    def start(self, size: int, listener: RankListener) -> None:
        """Do nothing: people start the ranks."""

    def check(self) -> None:
        """Do nothing: only their connections tell of these ranks."""

    def kill(self) -> None:
        """Do nothing: ranks end with their connections."""

    def close(self, deadline: float) -> None:
        """Do nothing: ranks end with their connections."""


class RayRanks:
    """Processes started by actors of the Ray cluster that this run is a job of.

    Args:
        config: number and resources of the ranks.
        gpus: whether each rank has a GPU.
        notice: told while the cluster lacks free resources.
    """

    def __init__(self, config: TrainerConfig, *, gpus: bool, notice: Notice) -> None:
        self._config, self._gpus, self._notice = config, gpus, notice
        self._key = secrets.token_hex(32)
        self._placement: Placement | None = None
        self._processes: list[NodeProcess] = []

    def listen(self) -> RankListener:
        """Return a listener on this node's address."""
        return RankListener(self._key.encode(), (own_address(), 0))

    def start(self, size: int, listener: RankListener) -> None:
        """Wait for the ranks' resources and start them; they meet in a store of this process."""
        bundles = rank_bundles(self._config, gpus=self._gpus)
        self._placement = Placement(bundles, name="trainer", notice=self._notice)
        host = own_address()
        self._store, port = _open_store(host, size)
        share = {name: amount / self._config.context_parallel for name, amount in bundles.resources.items()}
        project = str(Path(engine.__file__).parent.parent)
        for rank in range(size):
            process = NodeProcess(self._placement, rank // self._config.context_parallel, share)
            # Each rank sees its own device only, whose number is then 0.
            own = _environment(rank, size, 0, (host, port), listener.address, self._key)
            process.start(_COMMAND, {**own, **waiting_threads(), "PYTHONPATH": project})
            self._processes.append(process)

    def check(self) -> None:
        """Raise TrainerError if a rank has ended."""
        for rank, process in enumerate(self._processes):
            if (ending := process.ending()) is not None:
                raise _ended_early(rank, ending)

    def kill(self) -> None:
        """Kill all ranks."""
        for process in self._processes:
            process.kill()

    def close(self, deadline: float) -> None:
        """Wait for the ranks, kill those left, and give the resources back."""
        if self._placement is None:
            return
        if not wait_until_ended(self._processes, deadline):
            self.kill()
        self._placement.release()


def open_launcher(config: TrainerConfig, *, device: str, notice: Notice) -> RankLauncher:
    """Return the launcher that ``trainer.launcher`` names.

    Args:
        config: the trainer's settings.
        device: of the ranks, ``cpu`` or ``cuda``.
        notice: told while the ranks' resources are waited for.
    """
    match config.launcher:
        case "local":
            return LocalRanks()
        case "torchrun":
            return TorchrunRanks()
        case "ray":
            return RayRanks(config, gpus=device == "cuda", notice=notice)


def _ended_early(rank: int, ending: Ending) -> TrainerError:
    error = RankLostError if ending.is_lost else TrainerError
    return error(f"rank {rank} of the trainer ended while starting, {ending.text}")


def _open_store(host: str, size: int) -> tuple[TCPStore, int]:
    """Return the store in which the ranks meet, and its port."""
    with socket.create_server((host, 0)) as listening:
        port = listening.getsockname()[1]
        store = TCPStore(
            host,
            port,
            size,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=os.dup(listening.fileno()),
        )
    return store, port


def _environment(
    rank: int, size: int, local_rank: int, store: tuple[str, int], controller: str, key: str
) -> dict[str, str]:
    """Return the variables that tell a rank its place, and where it meets the others and its controller."""
    variables = {
        "RANK": rank, "LOCAL_RANK": local_rank, "WORLD_SIZE": size,
        "MASTER_ADDR": store[0], "MASTER_PORT": store[1],
        "TORCHELASTIC_USE_AGENT_STORE": True,  # the store is the controller's
        ADDRESS: controller, KEY: key,
    }  # fmt: skip
    return {name: str(value) for name, value in variables.items()}
