"""Launchers of the processes of a part of a run: ranks of a trainer, rollout workers, inference servers."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import engine
from engine.processes.guarded import GuardedProcess, Process
from engine.processes.link import LOOPBACK

PROJECT = Path(engine.__file__).parent.parent


class ProcessLauncher(Protocol):
    """Interface to create the processes of one part of a run; its methods may block."""

    isolates_devices: bool
    """Whether each process sees only its own CUDA devices, numbered from 0."""

    def open(self) -> None:
        """Reserve what the processes need. Raises PreflightError."""

    def host(self) -> str:
        """Return the address of this machine that the processes reach. Raises PreflightError."""

    def create(self, number: int) -> Process:
        """Return the process of a number, to be started. Raises PreflightError."""

    def close(self) -> None:
        """Release what was reserved; on a cluster, processes still running are killed."""


class LocalProcesses:
    """Launcher of processes on this machine."""

    isolates_devices = False

    def open(self) -> None:
        """Do nothing: nothing is reserved."""

    def host(self) -> str:
        """Return the loopback address."""
        return LOOPBACK

    def create(self, number: int) -> GuardedProcess:  # noqa: ARG002
        """Return a process of this machine."""
        return GuardedProcess()

    def close(self) -> None:
        """Do nothing: nothing is reserved."""


def run_module(process: Process, module: str, *arguments: str, environment: Mapping[str, str]) -> None:
    """Start ``python -m MODULE`` of this project."""
    path = os.pathsep.join(filter(None, (str(PROJECT), os.environ.get("PYTHONPATH"))))
    process.start([sys.executable, "-m", module, *arguments], {**environment, "PYTHONPATH": path})
