"""Launcher of engines on this machine, each as leader of its own session and process group.

An engine survives its worker: it has its own session, so neither a signal to the worker's group nor
``kill -9`` of the worker reaches it. A process is identified by its pid *and* the kernel's start time, so a
re-used pid is never signalled.
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
from workers.launchers.base import NO_ENDPOINTS, Endpoints, ProcessState

PROJECT = Path(__file__).resolve().parent.parent.parent
_SECRETS = frozenset(
    {
        "DATABASE_URL",
        "REDIS_URL",
        "TRAINYARD_SECRET_KEY",
        "TRAINYARD_SEALING_KEYS",
        "TRAINYARD_ENDPOINT_KEY",
        "TRAINYARD_VLLM_KEY",
    }
)
"""Environment variables withheld from engines, which authenticate with their run's token only and receive the
keys of their own endpoints on standard input."""
ENGINE = (sys.executable, "-m", "engine.run", "--secrets-on-stdin")
PID_FILE = "engine.pid"


class LocalLauncher:
    """Launcher of processes on this machine.

    Args:
        command: command line of the engine; the run folder is appended.
    """

    def __init__(
        self, command: tuple[str, ...] = (sys.executable, "-m", "engine.run", "--secrets-on-stdin")
    ) -> None:
        self._command = command

    def launch(self, run_dir: Path, endpoints: Endpoints = NO_ENDPOINTS) -> str:
        """Start the engine with its output in ``engine.log``; the handle is ``pid:start``."""
        with (run_dir / "engine.log").open("ab") as log, _secrets(endpoints) as secrets:
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
        """Return the state of the process; a re-used pid counts as gone."""
        if host != socket.gethostname():
            return ProcessState.UNREACHABLE
        return ProcessState.ALIVE if _is_that(handle) else ProcessState.DEAD

    def ask_to_stop(self, *, host: str, handle: str) -> None:
        """Send SIGTERM to the engine only, which closes its sandboxes itself."""
        if host == socket.gethostname() and _is_that(handle):
            with contextlib.suppress(ProcessLookupError):
                os.kill(_pid(handle), signal.SIGTERM)

    def kill(self, *, host: str, handle: str) -> None:
        """Send SIGKILL to the engine's process group."""
        if host == socket.gethostname() and _is_that(handle):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(_pid(handle), signal.SIGKILL)


def _secrets(endpoints: Endpoints) -> BinaryIO:
    """Return an in-memory file with the engine's endpoints and with what it redacts: this process's secrets.

    They are passed neither by the environment nor on disk.
    """
    file = os.fdopen(os.memfd_create("secrets"), "w+b")
    content = {"redacted": sorted(redactor().secrets), "endpoints": dict(endpoints)}
    file.write(json.dumps(content).encode())
    file.seek(0)
    return file


def _pid(handle: str) -> int:
    return int(handle.partition(":")[0])


def _is_that(handle: str) -> bool:
    pid, _, started = handle.partition(":")
    return pid.isdigit() and started.isdigit() and process_start(int(pid)) == int(started)
