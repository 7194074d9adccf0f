"""Children are kept running, stopped with everything they left, and bad starts are explained."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.errors import PreflightError
from webapp.supervisor import yard
from webapp.supervisor.home import Ports, exclusive, load_ports, save_ports
from webapp.supervisor.processes import MAX_RESTARTS, ChildFailedError, ProcessSpec, ProcessTable


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition was never met"
        time.sleep(0.02)


def spec(tmp_path: Path, code: str) -> ProcessSpec:
    return ProcessSpec(
        name="child",
        command=[sys.executable, "-c", code],
        environment=dict(os.environ),
        log=tmp_path / "child.log",
    )


def test_a_killed_child_is_started_again(tmp_path: Path) -> None:
    table = ProcessTable()
    table.start(spec(tmp_path, "import time; time.sleep(60)"))
    child = table.children[0]
    first = child.process.pid
    child.process.kill()
    child.process.wait()
    notes = table.check()
    assert len(notes) == 1
    assert "was started again" in notes[0]
    assert child.process.pid != first
    assert table.check() == []
    table.stop()
    assert child.process.poll() is not None


def test_stopping_ends_what_the_child_left_in_its_group(tmp_path: Path) -> None:
    marker = tmp_path / "grandchild"
    code = (
        "import subprocess, sys, pathlib, time\n"
        f"p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"pathlib.Path({str(marker)!r}).write_text(str(p.pid)); time.sleep(60)"
    )
    table = ProcessTable()
    table.start(spec(tmp_path, code))
    until(lambda: marker.exists() and marker.read_text() != "")
    grandchild = int(marker.read_text())
    table.stop()
    until(lambda: yard.process_start(grandchild) is None)


def test_a_killed_supervisor_takes_its_children_with_it(tmp_path: Path) -> None:
    marker = tmp_path / "child"
    code = (
        "import sys, time, pathlib\n"
        "from webapp.supervisor.processes import ProcessSpec, ProcessTable\n"
        "table = ProcessTable()\n"
        "table.start(ProcessSpec(name='child', command=[sys.executable, '-c', 'import time; time.sleep(60)'],"
        f" environment={{}}, log=pathlib.Path({str(tmp_path / 'log')!r})))\n"
        f"pathlib.Path({str(marker)!r}).write_text(str(table.children[0].process.pid))\n"
        "time.sleep(60)"
    )
    supervisor = subprocess.Popen([sys.executable, "-c", code])
    until(lambda: marker.exists() and marker.read_text() != "")
    child = int(marker.read_text())
    assert yard.process_start(child) is not None
    supervisor.kill()
    supervisor.wait()
    until(lambda: yard.process_start(child) is None)


def test_a_child_that_keeps_dying_is_given_up_with_its_log_named(tmp_path: Path) -> None:
    table = ProcessTable()
    table.start(spec(tmp_path, "raise SystemExit(3)"))
    for _ in range(MAX_RESTARTS):
        until(lambda: table.children[0].process.poll() is not None)
        table.check()
    until(lambda: table.children[0].process.poll() is not None)
    with pytest.raises(ChildFailedError, match=r"exit code 3.*child\.log"):
        table.check()
    table.stop()


def test_a_port_in_use_is_named_with_the_way_out(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(PreflightError, match=f"port {port} .* in use.*PORT="),
            yard.running_yard(tmp_path, web_port=port, say=lambda _line: None),
        ):
            pass
    with exclusive(tmp_path):
        assert not (tmp_path / "postgres").exists(), "nothing was started"


def test_a_full_disk_is_said_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yard, "MIN_FREE_BYTES", 10**18)
    with (
        pytest.raises(PreflightError, match="MB are free on the disk"),
        yard.running_yard(tmp_path, web_port=None, say=lambda _line: None),
    ):
        pass
    assert not (tmp_path / "postgres").exists()


def test_ports_are_remembered_and_damage_is_ignored(tmp_path: Path) -> None:
    assert load_ports(tmp_path) is None
    ports = Ports(postgres=1, redis=2, web=3)
    save_ports(tmp_path, ports)
    assert load_ports(tmp_path) == ports
    (tmp_path / "services.json").write_text("{half")
    assert load_ports(tmp_path) is None
