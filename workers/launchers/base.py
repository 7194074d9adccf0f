"""Launcher interface. A handle is an opaque string of the launcher, stored in Postgres between calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol, TypeAlias

from engine.config.launcher import LauncherConfig
from engine.config.run import AnyRun

Endpoints: TypeAlias = Mapping[str, Mapping[str, str]]
"""Endpoint name → address and key."""
PROJECT = Path(__file__).resolve().parent.parent.parent


class ProcessState(StrEnum):
    """State of an attempt's process."""

    ALIVE = "alive"
    DEAD = "dead"
    UNREACHABLE = "unreachable"
    """The process belongs to another machine and cannot be polled by this worker."""
    PENDING = "pending"
    """The cluster has the job and has not started it yet."""
    DISCONNECTED = "disconnected"
    """The cluster does not answer."""
    MISSING = "missing"
    """The cluster answers and does not have the job; the process may still run, unknown to the cluster."""
    EXTERNAL = "external"
    """Another program runs it; only its events and heartbeats are signs of life."""


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """Result of a poll."""

    state: ProcessState
    message: str = ""
    """Explanation for people, if the state needs one."""
    out_of_memory: bool = False
    """True if the kernel's out-of-memory killer ended the process or one of its children."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOrder:
    """Order to start one attempt."""

    run_dir: Path
    """The prepared run folder."""
    name: str
    """Name of the attempt, unique over all installations that share a cluster."""
    settings: LauncherConfig = field(default_factory=LauncherConfig)
    uses_cluster: bool = False
    """True if the engine starts processes on its cluster and needs the cluster's token."""
    endpoints: Endpoints = field(default_factory=dict)
    """Endpoints of the run, never passed by environment, command line or a file; the engine redacts their
    keys from all its output."""


Recorder: TypeAlias = Callable[[str, str], None]
"""Function that stores host and handle of an attempt's process."""


class Launcher(Protocol):
    """Interface to start, poll and end engine processes."""

    def check(self, run: AnyRun) -> None:
        """Check before a run's first start that its processes can be started.

        Raises:
            ConfigError: a requirement is not met; the problems name the settings.
        """

    def launch(self, order: LaunchOrder, record: Recorder) -> None:
        """Start ``engine.run`` on a prepared run folder, detached from this process.

        ``record`` is called as soon as the process has a handle. A launcher that chooses the handle calls
        ``record`` before it starts the process, so that a worker that dies in between leaves no unknown
        process.

        Raises:
            OSError: the process could not be started.
            ConfigError: the cluster refused the job.
        """

    def poll(self, *, host: str, handle: str) -> ProcessReport:
        """Return the state of the process."""

    def ask_to_stop(self, *, host: str, handle: str) -> None:
        """Ask the process to shut down and return immediately; no effect if it has ended."""

    def kill(self, *, host: str, handle: str) -> None:
        """Kill the process and its descendants; no effect if it has ended."""
