"""Starts engines on this machine, each leading its own session and process group.

The engine is no child that dies with the worker: it has its own session, so neither a signal to the
worker's group nor ``kill -9`` of the worker reaches it. A process is named by pid *and* start time as
the kernel counts it; a re-used pid is never signalled.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

from engine.processes import process_start
from engine.redaction import redactor
from workers.launchers.base import ProcessState

PROJECT = Path(__file__).resolve().parent.parent.parent
_SECRETS = frozenset({"DATABASE_URL", "REDIS_URL", "TRAINYARD_SECRET_KEY"})
"""An engine speaks to the web application with its run's token only."""
ENGINE = (sys.executable, "-m", "engine.run", "--secrets-on-stdin")
PID_FILE = "engine.pid"


class LocalLauncher:
    """A process of this machine.

    Args:
        command: what is run; the run folder is appended.
    """

    def __init__(
        self, command: tuple[str, ...] = (sys.executable, "-m", "engine.run", "--secrets-on-stdin")
    ) -> None:
        self._command = command

    def launch(self, run_dir: Path) -> str:
        """Start the engine with its output in ``engine.log``; the handle is ``pid:start``."""
        with (run_dir / "engine.log").open("ab") as log, _secrets() as secrets:
            process = subprocess.Popen(
                [*self._command, str(run_dir)],
                stdin=secrets,
                stdout=log,
                stderr=log,
                cwd=PROJECT,
                env={key: value for key, value in os.environ.items() if key not in _SECRETS},
                start_new_session=True,
            )
        started = process_start(process.pid) or 0
        record = json.dumps({"pid": process.pid, "started": started})
        (run_dir / PID_FILE).write_text(record)
        return f"{process.pid}:{started}"

    def poll(self, *, host: str, handle: str) -> ProcessState:
        """Alive only if the pid still belongs to the process that was started."""
        if host != socket.gethostname():
            return ProcessState.UNREACHABLE
        return ProcessState.ALIVE if _is_that(handle) else ProcessState.DEAD

    def ask_to_stop(self, *, host: str, handle: str) -> None:
        """SIGTERM to the engine alone: it closes its sandboxes itself."""
        if host == socket.gethostname() and _is_that(handle):
            with contextlib.suppress(ProcessLookupError):
                os.kill(_pid(handle), signal.SIGTERM)

    def kill(self, *, host: str, handle: str) -> None:
        """SIGKILL to the engine's whole process group."""
        if host == socket.gethostname() and _is_that(handle):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(_pid(handle), signal.SIGKILL)


def _secrets() -> BinaryIO:
    """Return a file in memory with the secrets that the engine keeps out of what it writes.

    The engine does not get them to use them, and they are neither in its environment nor on a disk.
    """
    file = os.fdopen(os.memfd_create("secrets"), "w+b")
    file.write(json.dumps(sorted(redactor().secrets)).encode())
    file.seek(0)
    return file


def _pid(handle: str) -> int:
    return int(handle.partition(":")[0])


def _is_that(handle: str) -> bool:
    pid, _, started = handle.partition(":")
    return pid.isdigit() and started.isdigit() and process_start(int(pid)) == int(started)
