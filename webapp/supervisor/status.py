"""What the supervisor tells the web server about the services: ``stack.json`` in the data folder."""

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
    """Whether a service can be used."""

    STARTING = "starting"
    """It was never up since the supervisor started."""
    UP = "up"
    DOWN = "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    """One service: its state, and what became of it before."""

    name: str
    """``postgresql``, ``redis``, ``web``, ``worker`` or ``beat``."""
    state: ServiceState
    since: float
    """Unix seconds since which it is in this state."""
    restarts: int = 0
    """How often it was started again since the supervisor started."""
    reason: str = ""
    """Why it last went down; kept when it is up again."""
    pid: int = 0
    """Its process; 0 when it has none, or is a server of somebody else."""
    started: int = 0
    """Start time of that process, see ``engine.processes``."""


def save_status(home: Path, services: Iterable[ServiceStatus]) -> None:
    """Write the services' state for the web server and for the next supervisor."""
    record = {
        "supervisor": {"pid": os.getpid(), "started": process_start(os.getpid())},
        "services": [asdict(service) for service in services],
    }
    atomic_write(home / STATUS_NAME, json.dumps(record, indent=1))


def clear_status(home: Path) -> None:
    """Remove the record of services that were stopped in order."""
    (home / STATUS_NAME).unlink(missing_ok=True)


def load_status(home: Path, *, of_the_dead: bool = False) -> list[ServiceStatus]:
    """Return what a running supervisor last wrote; nothing when none runs.

    Args:
        home: the data folder.
        of_the_dead: return what a supervisor wrote that has ended since.
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
