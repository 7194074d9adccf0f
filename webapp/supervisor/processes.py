"""Keeps a few child processes running: started in order, restarted when they die, stopped in reverse."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from webapp.supervisor.embedded import die_with_parent, stop_process

RESTART_WINDOW_S = 60.0
MAX_RESTARTS = 10
"""A process that dies more often than this within the window is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """One child: what to run, where its output goes, how long it may take to stop."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    stop_seconds: float = 8.0


class Child:
    """A running child and the times at which it had to be started again."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self.restarts: list[float] = []
        self.process = self._spawn()

    def _spawn(self) -> subprocess.Popen[bytes]:
        with self.spec.log.open("ab") as log:
            return subprocess.Popen(
                list(self.spec.command),
                env=dict(self.spec.environment),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGTERM),
            )

    def ensure_running(self) -> str | None:
        """Start the child again when it died; returns a sentence about what happened, if anything."""
        code = self.process.poll()
        if code is None:
            return None
        now = time.monotonic()
        self.restarts = [moment for moment in self.restarts if now - moment < RESTART_WINDOW_S]
        if len(self.restarts) >= MAX_RESTARTS:
            raise ChildFailedError(
                f"{self.spec.name} died {MAX_RESTARTS} times within {RESTART_WINDOW_S:.0f} s "
                f"(last exit code {code}); see {self.spec.log}"
            )
        self.restarts.append(now)
        end_group(self.process.pid)
        self.process = self._spawn()
        return f"{self.spec.name} ended with code {code} and was started again; see {self.spec.log}"

    def stop(self) -> None:
        """End the child and what it left in its process group."""
        stop_process(self.process, first=signal.SIGTERM, seconds=self.spec.stop_seconds)
        end_group(self.process.pid)


class ChildFailedError(RuntimeError):
    """A child keeps dying."""


def end_group(group: int) -> None:
    """Kill what is left of a process group that one of our children led."""
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


class ProcessTable:
    """The children of one supervisor."""

    def __init__(self) -> None:
        self.children: list[Child] = []

    def start(self, spec: ProcessSpec) -> None:
        """Start a child and keep it running from now on."""
        self.children.append(Child(spec))

    def check(self) -> list[str]:
        """Restart what died. Raises ChildFailedError when a child keeps dying."""
        return [note for child in self.children if (note := child.ensure_running())]

    def stop(self) -> None:
        """Stop all children, the last started first."""
        while self.children:
            self.children.pop().stop()
