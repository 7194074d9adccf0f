"""Processes of this machine under a guard (``guard``): they and all they started end with this process."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.processes import guard


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
    """A running command, here or on another machine."""

    def ending(self) -> Ending | None:
        """Return the end of the command; None while it starts or runs."""

    def kill(self) -> None:
        """Kill the command and its descendants; no effect if it has ended."""


def wait_until_ended(processes: Sequence[Process], deadline: float) -> bool:
    """Wait until all processes have ended; return False when the deadline (monotonic) came first."""
    while any(process.ending() is None for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def guarded_command(command: Sequence[str]) -> list[str]:
    """Return the command line of a guard that runs a command, to be started with a pipe as standard input."""
    return [sys.executable, "-I", guard.__file__, *command]


class GuardedProcess:
    """A running command; its descendants are killed once it has ended.

    Args:
        command: program and arguments.
        environment: all of its variables.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._guard = subprocess.Popen(
            guarded_command(command),
            env=dict(environment),
            stdin=subprocess.PIPE,  # its end tells the guard that this process is gone
            start_new_session=True,
        )

    def ending(self) -> Ending | None:
        """Return the end of the command; None while it runs."""
        code = self._guard.poll()
        return None if code is None else Ending.of_status(guard.returned_status(code))

    def kill(self) -> None:
        """Kill the command and its descendants, and wait for their end."""
        assert self._guard.stdin is not None
        with contextlib.suppress(OSError):
            self._guard.stdin.close()
        self._guard.wait()
