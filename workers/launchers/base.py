"""Launcher interface. A handle is an opaque text of the launcher, stored in Postgres between calls."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, TypeAlias

Endpoints: TypeAlias = Mapping[str, Mapping[str, str]]
"""Addresses and keys of endpoints by their names."""
NO_ENDPOINTS: Endpoints = MappingProxyType({})


class ProcessState(StrEnum):
    """State of an attempt's process."""

    ALIVE = "alive"
    DEAD = "dead"
    UNREACHABLE = "unreachable"
    """The process belongs to another machine and cannot be polled by this worker."""


class Launcher(Protocol):
    """Interface to start, poll and end engine processes."""

    def launch(self, run_dir: Path, endpoints: Endpoints = NO_ENDPOINTS) -> str:
        """Start ``engine.run`` on a prepared run folder, detached from this process; return its handle.

        Args:
            run_dir: the run folder.
            endpoints: sent to the engine's standard input, never by its environment or a file; the engine
                redacts their keys from all its output.

        Raises:
            OSError: the process could not be started.
        """

    def poll(self, *, host: str, handle: str) -> ProcessState:
        """Return the state of the process."""

    def ask_to_stop(self, *, host: str, handle: str) -> None:
        """Ask the process to shut down and return immediately; no effect if it has ended."""

    def kill(self, *, host: str, handle: str) -> None:
        """Kill the process and its descendants; no effect if it has ended."""
