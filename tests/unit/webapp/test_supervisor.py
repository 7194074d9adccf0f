"""Supervisor: restarts of services, shutdown of process groups, and errors at startup."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine.errors import PreflightError
from engine.processes import process_start
from webapp.supervisor import processes, stack
from webapp.supervisor.home import Ports, data_folder, exclusive, load_ports, save_ports
from webapp.supervisor.probes import Answer, Watch
from webapp.supervisor.processes import Service, ServiceSpec, ServiceTable, spawn_logged
from webapp.supervisor.status import ServiceState, ServiceStatus, clear_status, load_status, save_status


def until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition was never met"
        time.sleep(0.02)


def spec(tmp_path: Path, code: str, **changes: Any) -> ServiceSpec:
    log = tmp_path / "child.log"
    spawn = partial(spawn_logged, [sys.executable, "-c", code], environment=dict(os.environ), log=log)
    return ServiceSpec(**{"name": "child", "title": "The child", "spawn": spawn, "log": log, **changes})


def started(spec: ServiceSpec) -> tuple[ServiceTable, Service]:
    table = ServiceTable()
    table.start(spec)
    return table, table[spec.name]


def pid_of(service: Service) -> int:
    assert service.process is not None
    return service.process.pid


def notes_until(table: ServiceTable, condition: Callable[[list[str]], bool] = bool) -> list[str]:
    """Check the services until their collected notes fulfil the condition."""
    notes: list[str] = []

    def enough() -> bool:
        notes.extend(table.check())
        return condition(notes)

    until(enough, seconds=120.0)
    return notes


def kill(service: Service) -> None:
    assert service.process is not None
    service.process.kill()
    service.process.wait()


def stop(table: ServiceTable) -> None:
    table.stop([service.spec.name for service in table.services], seconds=5.0)


SLEEP = "import time; time.sleep(600)"


def test_killed_child_is_restarted_and_its_outage_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "BACKOFF_FIRST_S", 0.01)
    monkeypatch.setattr(processes, "SETTLED_S", 0.1)
    table, child = started(spec(tmp_path, SLEEP))
    first = pid_of(child)
    until(lambda: table.check() == [] and child.status.state is ServiceState.UP)
    before = time.time()
    kill(child)
    (note,) = table.check()
    assert "The child is down: it was ended by SIGKILL; starting it again" in note
    assert str(tmp_path / "child.log") in note
    assert child.status.state is ServiceState.DOWN
    assert child.status.since >= before
    down_since = child.status.since
    notes = notes_until(table)
    assert notes[0].startswith("The child is up again after ")
    assert pid_of(child) != first
    assert child.status.restarts == 1
    assert child.status.since > down_since
    assert child.status.reason == "it was ended by SIGKILL"
    stop(table)
    assert process_start(child.status.pid) is None


def test_stop_ends_grandchildren_in_the_process_group(tmp_path: Path) -> None:
    marker = tmp_path / "grandchild"
    code = (
        "import subprocess, sys, pathlib, time\n"
        f"p = subprocess.Popen([sys.executable, '-c', {SLEEP!r}])\n"
        f"pathlib.Path({str(marker)!r}).write_text(str(p.pid)); time.sleep(600)"
    )
    table, _child = started(spec(tmp_path, code))
    until(lambda: marker.exists() and marker.read_text() != "")
    grandchild = int(marker.read_text())
    stop(table)
    until(lambda: process_start(grandchild) is None)


def test_external_server_is_watched_and_never_started() -> None:
    trouble = {"why": ""}
    table = ServiceTable()
    table.start(ServiceSpec(name="redis", title="Redis", probe=lambda: trouble["why"]))
    server = table["redis"]
    until(lambda: table.check() == [] and server.status.state is ServiceState.UP)
    trouble["why"] = "Connection refused."
    notes = notes_until(table)
    assert notes == ["Redis is down: it does not answer: Connection refused.; waiting for it."]
    trouble["why"] = ""
    notes = notes_until(table)
    assert notes[0].startswith("Redis is up again after ")
    assert (server.status.state, server.status.restarts) == (ServiceState.UP, 0)
    stop(table)


def test_server_is_down_only_after_two_failed_probes() -> None:
    answers = iter(["", "busy", ""])
    seen: list[Answer] = []

    def probe() -> str:
        if watch.answer is not None:
            seen.append(watch.answer)
        return next(answers, "gone")

    watch = Watch.__new__(Watch)
    Watch.__init__(watch, probe, every_s=0.0)
    until(lambda: any(answer.confirmed for answer in seen))
    watch.close()
    assert [(answer.trouble, answer.confirmed) for answer in seen[:5]] == [
        ("", False), ("busy", False), ("", False), ("gone", False), ("gone", True),
    ]  # fmt: skip
    assert seen[4].since == seen[3].since > seen[1].since


def test_status_is_loaded_only_while_its_supervisor_lives(tmp_path: Path) -> None:
    status = ServiceStatus(name="redis", state=ServiceState.DOWN, since=12.0, restarts=2, reason="killed")
    save_status(tmp_path, [status])
    assert load_status(tmp_path) == [status]
    record = json.loads((tmp_path / "stack.json").read_text())
    record["supervisor"]["started"] -= 1
    (tmp_path / "stack.json").write_text(json.dumps(record))
    assert load_status(tmp_path) == []
    assert load_status(tmp_path, of_the_dead=True) == [status]
    (tmp_path / "stack.json").write_text("{half")
    assert load_status(tmp_path, of_the_dead=True) == []
    clear_status(tmp_path)
    clear_status(tmp_path)
    assert load_status(tmp_path) == []


def test_port_in_use_is_reported_with_a_remedy(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(PreflightError, match=f"port {port} .* in use.*PORT="),
            stack.running_stack(tmp_path, web_port=port, say=lambda _line: None),
        ):
            pass
    with exclusive(tmp_path):
        assert not (tmp_path / "postgres").exists(), "nothing was started"


def test_full_disk_is_reported_before_services_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack, "MIN_FREE_BYTES", 10**18)
    with (
        pytest.raises(PreflightError, match="MB are free on the disk"),
        stack.running_stack(tmp_path, web_port=None, say=lambda _line: None),
    ):
        pass
    assert not (tmp_path / "postgres").exists()


@pytest.mark.parametrize("mode", [None, 0o755])
def test_data_folder_is_accessible_to_its_owner_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int | None
) -> None:
    home = tmp_path / "home"
    if mode is not None:
        home.mkdir()
        home.chmod(mode)
    monkeypatch.setenv("TRAINYARD_HOME", str(home))
    assert data_folder() == home
    assert home.stat().st_mode & 0o777 == 0o700


def test_ports_are_saved_and_a_damaged_file_is_ignored(tmp_path: Path) -> None:
    assert load_ports(tmp_path) is None
    ports = Ports(postgres=1, redis=2, web=3)
    save_ports(tmp_path, ports)
    assert load_ports(tmp_path) == ports
    (tmp_path / "services.json").write_text("{half")
    assert load_ports(tmp_path) is None
