"""What a launcher can do. Handles are the launcher's own words, kept in Postgres between calls."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Protocol


class ProcessState(StrEnum):
    """What is known about an attempt's process."""

    ALIVE = "alive"
    DEAD = "dead"
    UNREACHABLE = "unreachable"
    """It runs, if it does, where this worker cannot look (another machine)."""


class Launcher(Protocol):
    """Starts, watches and ends engine processes."""

    def launch(self, run_dir: Path) -> str:
        """Start ``engine.run`` on a prepared run folder, outliving this process; returns its handle.

        Raises:
            OSError: it could not be started.
        """

    def poll(self, *, host: str, handle: str) -> ProcessState:
        """Whether that very process still exists."""

    def ask_to_stop(self, *, host: str, handle: str) -> None:
        """Ask it to end in order; returns at once, and does nothing when it is gone."""

    def kill(self, *, host: str, handle: str) -> None:
        """End it and everything it started; does nothing when it is gone."""
