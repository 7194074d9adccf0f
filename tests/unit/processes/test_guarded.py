"""Processes under a guard: how they end, and that they end."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

import pytest

from engine.processes import process_start
from engine.processes.guarded import Ending, GuardedProcess, end_process, wait_until_ended


def ended(code: str) -> Ending | None:
    """Run Python code under a guard and return its end."""
    process = GuardedProcess()
    process.start([sys.executable, "-c", code], {})
    assert wait_until_ended([process], time.monotonic() + 240)
    ending = process.ending()
    process.kill()
    assert process.ending() == ending
    return ending


@pytest.mark.parametrize("code", [0, 3, 200, 255])
def test_exit_codes_are_those_of_the_command(code: int) -> None:
    assert ended(f"raise SystemExit({code})") == Ending(f"with code {code}", is_lost=False)


@pytest.mark.parametrize("number", [9, 11, 15])
def test_a_killed_command_is_lost(number: int) -> None:
    assert ended(f"import os; os.kill(os.getpid(), {number})") == Ending(f"with code -{number}", is_lost=True)


def test_descendants_end_with_the_command(tmp_path: Path) -> None:
    script = (
        "import subprocess, time\n"
        "print(subprocess.Popen(['sleep', '999']).pid, flush=True)\n"
        "time.sleep(999)\n"
    )
    process, log = GuardedProcess(), tmp_path / "log"
    process.start([sys.executable, "-c", script], {}, log=log)
    deadline = time.monotonic() + 240
    while not log.read_text().strip():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    pid = int(log.read_text())
    assert process.ending() is None
    end_process(process)
    assert process_start(pid) is None
    assert process.ending() is not None


def test_only_the_named_variables_are_inherited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT_ONE", "1")
    monkeypatch.setenv("SECRET", "2")
    process, log = GuardedProcess(), tmp_path / "log"
    code = "import os; print(sorted(os.environ.keys() & {'KEPT_ONE', 'SECRET', 'OWN'}))"
    process.start([sys.executable, "-c", code], {"OWN": "3"}, inherited=["KEPT_*"], log=log)
    assert wait_until_ended([process], time.monotonic() + 240)
    process.kill()
    assert log.read_text() == "['KEPT_ONE', 'OWN']\n"


def test_a_reserved_port_is_given_to_nobody_until_the_kill() -> None:
    process = GuardedProcess()
    address = process.reserve(1)
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(address)
    process.kill()
    with socket.socket() as other:
        other.bind(address)
