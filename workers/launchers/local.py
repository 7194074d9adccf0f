"""Launcher of engines on this machine, each as leader of its own session and process group.

An engine survives its worker: it has its own session, so neither a signal to the worker's group nor
``kill -9`` of the worker reaches the engine. A process is identified by its pid *and* the kernel's start
time, so a reused pid is never signalled.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import BinaryIO

from engine.config.placement import run_bundles
from engine.config.run import AnyRun
from engine.errors import ConfigError, Problem
from engine.files import atomic_write
from engine.processes import process_start
from engine.processes.memory import was_killed_for_memory
from engine.redaction import redactor
from webapp.supervisor.engine_process import SECRETS
from workers.launchers.base import (
    PROJECT,
    Endpoints,
    LaunchOrder,
    ProcessReport,
    ProcessState,
    Recorder,
)

ENGINE = (sys.executable, "-m", "engine.run", "--secrets-on-stdin")
PID_FILE = "engine.pid"
STACKS_S = 0.2
"""Time between SIGQUIT and SIGKILL, for the engine to write the stacks of its threads, seconds."""


class LocalLauncher:
    """Launcher of processes on this machine.

    Args:
        command: command line of the engine; the run folder is appended.
    """

    def __init__(self, command: tuple[str, ...] = ENGINE) -> None:
        self._command = command

    def check(self, run: AnyRun) -> None:
        """Refuse a run that reserves parts of a Ray cluster; Trainyard already runs on this machine."""
        message = "needs a run that is a job of a Ray cluster: set launcher.backend to 'ray'"
        if reserved := run_bundles(run, cluster_has_gpus=False):
            raise ConfigError(*(Problem(message, bundles.launcher) for bundles in reserved))

    def launch(self, order: LaunchOrder, record: Recorder) -> None:
        """Start the engine with its output in ``engine.log``; the handle is ``pid:start``."""
        run_dir = order.run_dir
        with (run_dir / "engine.log").open("ab") as log, _secrets(order.endpoints) as secrets:
            process = subprocess.Popen(
                [*self._command, str(run_dir)],
                stdin=secrets,
                stdout=log,
                stderr=log,
                cwd=PROJECT,
                env={key: value for key, value in os.environ.items() if key not in SECRETS},
                start_new_session=True,
            )
        started = process_start(process.pid) or 0
        atomic_write(run_dir / PID_FILE, json.dumps({"pid": process.pid, "started": started}))
        record(socket.gethostname(), f"{process.pid}:{started}")

    def poll(self, *, host: str, handle: str) -> ProcessReport:
        """Return the state of the process; a reused pid counts as dead."""
        if host != socket.gethostname():
            return ProcessReport(ProcessState.UNREACHABLE)
        if _is_alive(handle):
            return ProcessReport(ProcessState.ALIVE)
        pid, _, started = handle.partition(":")
        return ProcessReport(ProcessState.DEAD, out_of_memory=was_killed_for_memory(int(pid), int(started)))

    def ask_to_stop(self, *, host: str, handle: str) -> None:
        """Send SIGTERM to the engine only; it closes its sandboxes itself."""
        if host == socket.gethostname() and _is_alive(handle):
            with contextlib.suppress(ProcessLookupError):
                os.kill(_pid(handle), signal.SIGTERM)

    def kill(self, *, host: str, handle: str) -> None:
        """Request the engine's stacks in its log by SIGQUIT, then send SIGKILL to its process group."""
        if host == socket.gethostname() and _is_alive(handle):
            with contextlib.suppress(ProcessLookupError):
                os.kill(_pid(handle), signal.SIGQUIT)
                time.sleep(STACKS_S)
                os.killpg(_pid(handle), signal.SIGKILL)


def _secrets(endpoints: Endpoints) -> BinaryIO:
    """Return an in-memory file with the engine's endpoints and with this process's secrets, for redaction.

    Neither the environment nor the disk contains them.
    """
    file = os.fdopen(os.memfd_create("secrets"), "w+b")
    content = {"redacted": sorted(redactor().secrets), "endpoints": dict(endpoints)}
    file.write(json.dumps(content).encode())
    file.seek(0)
    return file


def _pid(handle: str) -> int:
    return int(handle.partition(":")[0])


def _is_alive(handle: str) -> bool:
    pid, _, started = handle.partition(":")
    return pid.isdigit() and started.isdigit() and process_start(int(pid)) == int(started)
