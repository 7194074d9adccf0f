"""Runs killed at an arbitrary moment match uninterrupted ones."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from engine.processes import process_start
from tests.unit.trainer.builders.rl_training_script import run
from tests.unit.trainer.test_checkpoint import assert_same_end, names


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use one thread, so that ranks round alike in every parent process."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_killed_run_matches_an_uninterrupted_one(tmp_path: Path) -> None:
    """SIGKILL may interrupt a save; the next attempt is another process."""
    killed = tmp_path / "killed"
    process = _start(killed)
    _wait(lambda: _newest(killed) >= 3, process)
    time.sleep(random.SystemRandom().uniform(0.0, 0.05))
    process.kill()
    process.wait()
    length = _newest(killed) + 2
    run(killed, length)
    run(tmp_path / "whole", length)
    assert_same_end(tmp_path / "whole", killed)
    assert names(killed) == [f"{length - 1:05d}", f"{length:05d}"]


def test_killed_run_of_two_ranks_ends_them_and_matches_an_uninterrupted_one(tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    process = _start(killed, ranks=2)
    _wait(lambda: _newest(killed) >= 2, process)
    ranks = [child for child in psutil.Process(process.pid).children(recursive=True) if _is_rank(child)]
    assert len(ranks) == 2
    starts = {rank.pid: process_start(rank.pid) for rank in ranks}
    process.kill()
    process.wait()
    length = _newest(killed) + 2
    while any(process_start(pid) == start for pid, start in starts.items() if start is not None):
        time.sleep(0.05)  # a rank without its controller ends
    run(killed, length, 2)
    run(tmp_path / "whole", length, 2)
    assert_same_end(tmp_path / "whole", killed)


def _is_rank(process: psutil.Process) -> bool:
    """Return whether a process is a rank, not the guard that started it."""
    command = process.cmdline()
    return "rank" in command and not any(part.endswith("guard.py") for part in command)


def _start(run_dir: Path, *, ranks: int = 1) -> subprocess.Popen[bytes]:
    script = [sys.executable, "-m", "tests.unit.trainer.builders.rl_training_script"]
    return subprocess.Popen([*script, str(run_dir), "20", str(ranks)])


def _wait(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    while not condition():
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.002)


def _newest(run_dir: Path) -> int:
    return max((int(p.name) for p in (run_dir / "checkpoints").glob("[0-9]*")), default=0)
