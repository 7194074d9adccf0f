"""The guard of a server ends all server processes, whichever process is killed."""

from __future__ import annotations

import signal
import subprocess
import sys

import psutil

from engine.processes import guard
from tests.unit.inference.vllm.test_server import _await_end

_STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
orphan = subprocess.Popen(
    [sys.executable, "-c", "import os, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(999)"],
)
print(os.getpid(), flush=True)
time.sleep(999)
"""
"""A command that ignores SIGTERM and has a child in another session."""


def _start_guard(code: str) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """Start the guard of a command; return the guard and the two processes whose IDs the command prints."""
    process = subprocess.Popen(
        [sys.executable, "-I", guard.__file__, sys.executable, "-c", code],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    return process, [psutil.Process(int(process.stdout.readline())) for _ in range(2)]


def test_guard_ends_all_processes_when_its_input_closes() -> None:
    process, started = _start_guard(_STUBBORN)
    assert process.stdin is not None
    process.stdin.close()
    process.wait(timeout=120)
    _await_end(started)


def test_guard_ends_all_processes_when_its_parent_is_killed() -> None:
    """The parent's other child still has the guard's input open."""
    parent = (
        "import subprocess, sys, time\n"
        f"command = [sys.executable, '-I', {guard.__file__!r}, sys.executable, '-c', {_STUBBORN!r}]\n"
        "g = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)\n"
        "subprocess.Popen(['sleep', '120'], pass_fds=[g.stdin.fileno()], stdout=subprocess.DEVNULL)\n"
        "time.sleep(999)\n"
    )
    run = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    started = [psutil.Process(int(run.stdout.readline())) for _ in range(2)]
    holder = next(child for child in psutil.Process(run.pid).children() if child.name() == "sleep")
    run.kill()
    run.wait()
    _await_end(started)
    holder.kill()


def test_guard_kills_a_command_that_ignores_sigterm() -> None:
    process, started = _start_guard(_STUBBORN)
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=120)
    _await_end(started)


def test_guard_exits_with_the_exit_status_of_its_command() -> None:
    last_line = _STUBBORN.rindex("time.sleep")
    process, started = _start_guard(_STUBBORN[:last_line] + "time.sleep(3)\nsys.exit(7)")
    assert process.wait(timeout=120) == 7
    _await_end(started)
