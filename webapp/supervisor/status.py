"""Status of the services for the web server: ``stack.json`` in the data folder."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from engine.files import atomic_write
from engine.processes import process_start

STATUS_NAME = "stack.json"


class ServiceState(StrEnum):
    """State of a service."""

    STARTING = "starting"
    """The service has not been up since the supervisor started."""
    UP = "up"
    DOWN = "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    """Status of one service."""

    name: str
    """``postgresql``, ``redis``, ``web``, ``worker`` or ``beat``."""
    state: ServiceState
    since: float
    """Unix seconds of the last state change."""
    restarts: int = 0
    """Number of restarts since the supervisor started."""
    reason: str = ""
    """Reason of the last outage; kept after recovery."""
    pid: int = 0
    """Process id; 0 without a process and for external servers."""
    started: int = 0
    """Start time of the process, see ``engine.processes``."""


def save_status(home: Path, services: Iterable[ServiceStatus]) -> None:
    """Write the status of the services for the web server and the next supervisor."""
    record = {
        "supervisor": {"pid": os.getpid(), "started": process_start(os.getpid())},
        "services": [asdict(service) for service in services],
    }
    atomic_write(home / STATUS_NAME, json.dumps(record, indent=1))


def clear_status(home: Path) -> None:
    """Remove the status file after an orderly stop."""
    (home / STATUS_NAME).unlink(missing_ok=True)


def load_status(home: Path, *, of_the_dead: bool = False) -> list[ServiceStatus]:
    """Return the last status written by the running supervisor; empty if none runs.

    Args:
        home: the data folder.
        of_the_dead: return the status of a supervisor that has ended since.
    """
    try:
        record = json.loads((home / STATUS_NAME).read_text())
        supervisor = record["supervisor"]
        alive = process_start(int(supervisor["pid"])) == supervisor["started"]
        services = [
            ServiceStatus(**{**row, "state": ServiceState(row["state"])}) for row in record["services"]
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return services if alive or of_the_dead else []
