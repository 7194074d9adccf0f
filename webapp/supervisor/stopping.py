"""Stop of all processes and sandboxes of a data folder, always within ten seconds.

web server, worker, beat   3 s, then killed
engines                    killed: the next start resumes their runs from the last checkpoint
sandboxes, databases       5 s concurrently, then killed; the next start removes the remaining ones
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from engine.processes import process_start
from webapp.supervisor.engine_process import EngineFailedError
from webapp.supervisor.home import PROJECT
from webapp.supervisor.processes import ServiceTable
from webapp.supervisor.reaping import run_reaper

PROCESSES_S = 3.0
SERVERS_S = 5.0
_LEDGERS = "sandboxes"
"""Subfolder with one file per sandbox, see ``engine.sandbox.ledger``."""

log = logging.getLogger(__name__)


def stop_everything(services: ServiceTable, home: Path) -> None:
    """Stop the services, end the engines of the data folder and remove their sandboxes."""
    services.stop(("web", "worker", "beat"), seconds=PROCESSES_S)
    end_engines(home)
    reaping = threading.Thread(target=_reap, args=(home,), name="reaping")
    reaping.start()
    services.stop(("postgresql", "redis"), seconds=SERVERS_S)
    reaping.join()


def end_engines(home: Path) -> None:
    """Kill the process groups led by this data folder's engines; local sandboxes end with them."""
    for pid_file in sorted((home / "runs").glob("*/engine.pid")):
        try:
            record = json.loads(pid_file.read_text())
            pid, started = int(record["pid"]), int(record["started"])
        except (OSError, ValueError, KeyError):
            continue
        if process_start(pid) == started:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)


def _reap(home: Path) -> None:
    if not any((home / _LEDGERS).glob("**/*.json")):
        return
    try:
        run_reaper(home=home, project=PROJECT, settings=_backend_settings(home), timeout_s=SERVERS_S)
    except EngineFailedError as error:
        log.warning("sandboxes are left for the next start: %s", error)


def _backend_settings(home: Path) -> Sequence[dict[str, Any]]:
    """Return the sandbox settings of the runs with recorded sandboxes, the local backend first."""
    sections: dict[str, dict[str, Any]] = {"local": {"backend": "local"}}
    for ledger in sorted((home / _LEDGERS).glob("**/*.json")):
        try:
            run_id = str(json.loads(ledger.read_text())["run_id"])
            section = json.loads((home / "runs" / run_id / "config.json").read_text())["sandbox"]
            backend = str(section["backend"])
            if backend != "local":
                kept = {"backend": backend, backend: section[backend]}
                sections[json.dumps(kept, sort_keys=True)] = kept
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return list(sections.values())
