"""Places where rollout workers run: this machine, or the nodes of a Ray cluster."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import engine
from engine.config.placement import worker_bundles
from engine.config.rollout import RolloutConfig
from engine.processes.guarded import GuardedProcess, Process
from engine.processes.link import LOOPBACK
from engine.ray.cluster import own_address
from engine.ray.node_process import NodeProcess
from engine.ray.placement import Notice, Placement

_COMMAND = (sys.executable, "-m", "engine.rollout.processes")
_ALONE = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
"""Variables that keep numeric libraries from starting a thread for each core: workers compute little."""


class WorkerLauncher(Protocol):
    """Interface to start workers; its methods may block."""

    def host(self) -> str:
        """Return the address of this machine that workers reach. Raises PreflightError."""

    def start(self, number: int, variables: Mapping[str, str]) -> Process:
        """Start the worker of a number with these variables. Raises PreflightError."""

    def close(self) -> None:
        """Give reserved resources back."""


class LocalWorkers:
    """Workers that are child processes of this one."""

    def host(self) -> str:
        """Return the loopback address."""
        return LOOPBACK

    def start(self, number: int, variables: Mapping[str, str]) -> Process:  # noqa: ARG002
        """Start a worker."""
        path = os.pathsep.join(filter(None, sys.path))
        return GuardedProcess(_COMMAND, {**os.environ, **_ALONE, **variables, "PYTHONPATH": path})

    def close(self) -> None:
        """Do nothing: nothing is reserved."""


class RayWorkers:
    """Workers on nodes of the Ray cluster that this run is a job of, spread over them.

    Args:
        config: number of the workers, and the memory that each reserves.
        notice: told while the cluster lacks free resources.
    """

    def __init__(self, config: RolloutConfig, *, notice: Notice) -> None:
        self._bundles, self._notice = worker_bundles(config), notice
        self._placement: Placement | None = None
        self._lock = threading.Lock()

    def host(self) -> str:
        """Return this node's address."""
        return own_address()

    def start(self, number: int, variables: Mapping[str, str]) -> Process:
        """Start a worker in its bundle; the first start waits until all bundles are reserved."""
        with self._lock:
            if self._placement is None:
                self._placement = Placement(self._bundles, name="rollout workers", notice=self._notice)
        process = NodeProcess(self._placement, number, self._bundles.resources)
        project = str(Path(engine.__file__).parent.parent)
        process.start(_COMMAND, {**_ALONE, **variables, "PYTHONPATH": project})
        return process

    def close(self) -> None:
        """Give the bundles back; workers that are left are killed."""
        if self._placement is not None:
            self._placement.release()


def open_worker_launcher(config: RolloutConfig, *, notice: Notice) -> WorkerLauncher:
    """Return the launcher that ``rollout.launcher`` names."""
    return RayWorkers(config, notice=notice) if config.launcher == "ray" else LocalWorkers()
