"""Start and end of the processes of a trainer's ranks."""

from __future__ import annotations

import os
import secrets
import socket
from concurrent.futures import ThreadPoolExecutor

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from engine.config.learning.trainer import TrainerConfig
from engine.config.placement import rank_bundles
from engine.errors import RankLostError, TrainerError
from engine.processes.guarded import Process, wait_until_ended
from engine.processes.launchers import LocalProcesses, ProcessLauncher, run_module
from engine.processes.link import LOOPBACK
from engine.ray.launcher import RayProcesses
from engine.ray.placement import Notice
from engine.threads import waiting_threads
from engine.trainer.processes.link import ADDRESS, KEY, RankListener, read_address, read_key


class RankProcesses:
    """Processes of all ranks.

    Args:
        launcher: creates them; None: people start them with ``torchrun``, on any number of machines.
    """

    def __init__(self, launcher: ProcessLauncher | None) -> None:
        self.processes: list[Process] = []
        self._launcher = launcher
        self._key = secrets.token_hex(32)

    def listen(self) -> RankListener:
        """Return the listener to which the ranks will connect. Raises PreflightError, TrainerError."""
        if self._launcher is None:
            return RankListener(read_key(), read_address())
        return RankListener(self._key.encode(), (self._launcher.host(), 0))

    def start(self, size: int, listener: RankListener) -> None:
        """Start the ranks; they meet in a store of this process. Raises PreflightError."""
        if self._launcher is None:
            return
        self._launcher.open()
        host = self._launcher.host()
        self._store, port = _open_store(host, size)
        for rank in range(size):
            variables = {
                "RANK": rank, "WORLD_SIZE": size,
                "LOCAL_RANK": 0 if self._launcher.isolates_devices else rank,
                "MASTER_ADDR": host, "MASTER_PORT": port,
                "TORCHELASTIC_USE_AGENT_STORE": True,  # the store is the controller's
                ADDRESS: listener.address, KEY: self._key,
                **waiting_threads(), **_network(host),
            }  # fmt: skip
            process = self._launcher.create(rank)
            environment = {name: str(value) for name, value in variables.items()}
            run_module(process, "engine.trainer", "rank", environment=environment)
            self.processes.append(process)

    def check(self) -> None:
        """Raise TrainerError if a rank has ended; called while ranks start."""
        for rank, process in enumerate(self.processes):
            if (ending := process.ending()) is not None:
                error = RankLostError if ending.is_lost else TrainerError
                raise error(f"rank {rank} of the trainer ended while starting, {ending.text}")

    def kill(self) -> None:
        """Kill all ranks at once; may be called from another thread."""
        with ThreadPoolExecutor(max(1, len(self.processes))) as pool:
            list(pool.map(lambda process: process.kill(), self.processes))

    def close(self, deadline: float) -> None:
        """Wait until the ranks have ended by themselves; kill those left at the deadline (monotonic)."""
        wait_until_ended(self.processes, deadline)
        self.kill()
        if self._launcher is not None:
            self._launcher.close()


def open_launcher(config: TrainerConfig, *, device: str, notice: Notice) -> ProcessLauncher | None:
    """Return the launcher that ``trainer.launcher`` names; None for ``torchrun``.

    Args:
        config: the trainer's settings.
        device: of the ranks, ``cpu`` or ``cuda``.
        notice: told while the ranks' resources are waited for.
    """
    match config.launcher:
        case "local":
            return LocalProcesses()
        case "torchrun":
            return None
        case "ray":
            bundles = rank_bundles(config, gpus=device == "cuda")
            return RayProcesses(bundles, per_bundle=config.context_parallel, name="trainer", notice=notice)


def _network(host: str) -> dict[str, str]:
    """Return the variables that keep the ranks of one machine on its loopback interface."""
    if host != LOOPBACK:
        return {}
    return {name: os.environ.get(name, "lo") for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")}


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
