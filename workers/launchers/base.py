"""Launcher interface. A handle is an opaque text of the launcher, stored in Postgres between calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class LaunchSecrets:
    """Environment variables of one engine that contain secrets, and these secrets."""

    variables: Mapping[str, str]
    secrets: tuple[str, ...]


NO_SECRETS = LaunchSecrets({}, ())


class ProcessState(StrEnum):
    """State of an attempt's process."""

    ALIVE = "alive"
    DEAD = "dead"
    UNREACHABLE = "unreachable"
    """The process belongs to another machine and cannot be polled by this worker."""


class Launcher(Protocol):
    """Interface to start, poll and end engine processes."""

    def launch(self, run_dir: Path, secrets: LaunchSecrets = NO_SECRETS) -> str:
        """Start ``engine.run`` on a prepared run folder, detached from this process; return its handle.

        Args:
            run_dir: the run folder.
            secrets: variables added to the engine's environment, never written to a file; the engine redacts
                their secrets from all its output.

        Raises:
            OSError: the process could not be started.
        """

    def poll(self, *, host: str, handle: str) -> ProcessState:
        """Return the state of the process."""

    def ask_to_stop(self, *, host: str, handle: str) -> None:
        """Ask the process to shut down and return immediately; no effect if it has ended."""

    def kill(self, *, host: str, handle: str) -> None:
        """Kill the process and its descendants; no effect if it has ended."""
