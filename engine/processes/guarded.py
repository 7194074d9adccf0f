"""Processes that end with this one: their interface, and those of this machine, under a guard (``guard``)."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol

from engine.processes import guard
from engine.processes.link import LOOPBACK
from engine.processes.ports import hold_free_port

ALL = ("*",)
_KILL_S = 5.0
"""Time for a guard to end after it has killed its command, seconds."""
_POLL_S = 0.05
_LEAVE_ZOMBIE = os.WEXITED | os.WNOWAIT


@dataclass(frozen=True, slots=True)
class Ending:
    """End of a process."""

    text: str
    """Its circumstances, after "it ended"."""
    is_lost: bool
    """Whether the process was killed, by a signal or with its node, and did not end by itself."""

    @classmethod
    def of_status(cls, status: int) -> Ending:
        """Return the end with a status; negative: the signal that ended it."""
        return cls(f"with code {status}", is_lost=status < 0)


class Process(Protocol):
    """A command on this or another machine. It ends with this process; its descendants end with it."""

    def reserve(self, timeout_s: float) -> tuple[str, int]:
        """Return the address of its machine and a free port there, before the start.

        Raises PreflightError if no machine has room for it within the time, NodeLostError if it lost its own.
        """

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        inherited: Sequence[str] = ALL,
        log: Path | None = None,
    ) -> None:
        """Start a command; called once.

        Args:
            command: program and arguments.
            environment: its variables besides those of its machine.
            inherited: patterns of names of its machine's variables that it inherits.
            log: file on its machine to which its output is appended; None: the output of its machine.
        """

    def ending(self) -> Ending | None:
        """Return the end of the started command; None while it starts or runs."""

    def terminate(self) -> None:
        """Ask the command to end by itself; no effect if it has ended."""

    def kill(self) -> None:
        """Kill the command and its descendants; no effect before the start and after the end."""


def wait_until_ended(processes: Sequence[Process], deadline: float) -> bool:
    """Wait until all processes have ended; return False when the deadline (monotonic) came first."""
    while any(process.ending() is None for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def end_process(process: Process) -> None:
    """Ask a started command to end, wait a while, and kill what is left."""
    if process.ending() is None:
        process.terminate()
        wait_until_ended([process], time.monotonic() + guard.GRACE_S + _KILL_S)
    process.kill()


def guarded_command(command: Sequence[str]) -> list[str]:
    """Return the command line of a guard that runs a command, to be started with a pipe as standard input."""
    return [sys.executable, "-I", guard.__file__, *command]


def inherited_environment(patterns: Sequence[str]) -> dict[str, str]:
    """Return this process's variables whose names match a pattern."""
    return {
        name: value
        for name, value in os.environ.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    }


class GuardedProcess:
    """A process of this machine, in a session of its own."""

    def __init__(self) -> None:
        self._port: socket.socket | None = None
        """Holds the reserved port: a server listens only after it has loaded its model."""
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the guard, which leads the session."""
        assert self._guard is not None
        return self._guard.pid

    def reserve(self, timeout_s: float) -> tuple[str, int]:  # noqa: ARG002  # there is always room
        """Return the loopback interface and a free port of it."""
        self._port = hold_free_port(LOOPBACK)
        return LOOPBACK, self._port.getsockname()[1]

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        inherited: Sequence[str] = ALL,
        log: Path | None = None,
    ) -> None:
        """Start a command, as ``Process.start``."""
        with contextlib.ExitStack() as stack:
            output = stack.enter_context(log.open("ab")) if log else None
            self._guard = subprocess.Popen(
                guarded_command(command),
                env={**inherited_environment(inherited), **environment},
                stdin=subprocess.PIPE,  # its end tells the guard that this process is gone
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def ending(self) -> Ending | None:
        """Return the end of the command; None while it runs.

        The guard remains a zombie until ``kill``, so that its number still names the session to be killed.
        """
        assert self._guard is not None
        if self._guard.returncode is not None:
            return Ending.of_status(self._guard.returncode)
        try:
            ended = os.waitid(os.P_PID, self._guard.pid, _LEAVE_ZOMBIE | os.WNOHANG)
        except ChildProcessError:  # ``kill`` in another thread was faster
            return Ending.of_status(self._guard.wait())
        if ended is None:
            return None
        killed = ended.si_code in {os.CLD_KILLED, os.CLD_DUMPED}
        return Ending.of_status(-ended.si_status if killed else ended.si_status)

    def terminate(self) -> None:
        """Ask the command to end by itself."""
        if self._guard is not None and self.ending() is None:
            os.kill(self._guard.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the command and its descendants, and wait for their end."""
        if self._port is not None:
            self._port.close()
        process = self._guard
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        wait_until_ended([self], time.monotonic() + _KILL_S)
        with contextlib.suppress(ProcessLookupError):  # another thread was faster
            os.killpg(process.pid, signal.SIGKILL)  # also what a killed guard left behind
        process.wait()
