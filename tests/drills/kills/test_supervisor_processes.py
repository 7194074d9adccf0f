"""Services that ignore signals, crash repeatedly, or lose their supervisor."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from engine.processes import process_start
from tests.unit.webapp.test_supervisor import SLEEP, kill, notes_until, pid_of, spec, started, stop, until
from webapp.supervisor import processes
from webapp.supervisor.processes import ServiceSpec, ServiceTable, spawn_logged
from webapp.supervisor.status import ServiceState


def test_stop_kills_services_that_ignore_sigterm_at_one_shared_deadline(tmp_path: Path) -> None:
    deaf = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True)\n"
    )
    table = ServiceTable()
    for name in ("one", "two", "three"):
        log = tmp_path / f"{name}.log"
        command = [sys.executable, "-c", deaf + SLEEP]
        spawn = partial(spawn_logged, command, environment=dict(os.environ), log=log)
        table.start(ServiceSpec(name=name, title=name, spawn=spawn, log=log))
    logs = [tmp_path / f"{name}.log" for name in ("one", "two", "three")]
    until(lambda: all("deaf" in log.read_text() for log in logs))
    pids = [pid_of(service) for service in table.services]
    assert len(pids) == 3
    table.stop(("one", "two"), seconds=0.0)
    assert [process_start(pid) is None for pid in pids] == [True, True, False]
    table.stop(("three",), seconds=0.0)
    assert process_start(pids[2]) is None


def test_child_processes_end_with_a_killed_supervisor(tmp_path: Path) -> None:
    marker = tmp_path / "child"
    code = (
        "import sys, time, pathlib\n"
        "from webapp.supervisor.processes import spawn_logged\n"
        f"child = spawn_logged([sys.executable, '-c', {SLEEP!r}], environment={{}},"
        f" log=pathlib.Path({str(tmp_path / 'log')!r}))\n"
        f"pathlib.Path({str(marker)!r}).write_text(str(child.pid))\n"
        "time.sleep(600)"
    )
    supervisor = subprocess.Popen([sys.executable, "-c", code])
    until(lambda: marker.exists() and marker.read_text() != "")
    child = int(marker.read_text())
    assert process_start(child) is not None
    supervisor.kill()
    supervisor.wait()
    until(lambda: process_start(child) is None)


def test_crashing_child_is_restarted_with_increasing_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "BACKOFF_FIRST_S", 0.001)
    table, child = started(spec(tmp_path, "raise SystemExit(3)"))
    notes = notes_until(table, lambda _notes: child.status.restarts > 12)
    assert all("it ended with exit code 3" in note for note in notes)
    monkeypatch.setattr(processes, "BACKOFF_FIRST_S", 1.0)
    notes_until(table, lambda notes: "in 30 s" in " ".join(notes))
    restarts = child.status.restarts
    for _ in range(1000):
        assert table.check() == []
    assert child.status.restarts == restarts, "it is not spun"
    assert child.status.state is ServiceState.DOWN
    stop(table)


def test_unstartable_child_is_reported_down_with_the_reason(tmp_path: Path) -> None:
    table, child = started(spec(tmp_path, SLEEP))
    kill(child)
    (tmp_path / "child.log").unlink()
    (tmp_path / "child.log").mkdir()
    notes_until(table, lambda notes: "cannot be started" in " ".join(notes))
    assert child.status.state is ServiceState.DOWN
    stop(table)
