"""Stopping the services ends running engines and removes their sandboxes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.processes import process_start
from engine.sandbox.ledger import Ledger, LedgerEntry
from webapp.supervisor import stopping
from webapp.supervisor.processes import ServiceTable
from webapp.supervisor.stopping import stop_everything

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def write_orphaned_entry(ledger: Path, run_id: str) -> None:
    """Write the ledger entry of a sandbox whose owner has ended."""
    entry = LedgerEntry(
        id=f"sb-{run_id}",
        run_id=run_id,
        name="",
        image="toy",
        owner_pid=2**22 - 1,
        owner_start=1,
        deadline=1e9,
    )
    Ledger(ledger).write(entry)


def test_stopping_ends_running_engines_and_removes_their_sandboxes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "SERVERS_S", 240.0)
    engine = subprocess.Popen(SLEEP, start_new_session=True)
    stranger = subprocess.Popen(SLEEP, start_new_session=True)
    for run, pid, started in (("7", engine.pid, process_start(engine.pid)), ("8", stranger.pid, 1)):
        folder = tmp_path / "runs" / run
        folder.mkdir(parents=True)
        (folder / "engine.pid").write_text(json.dumps({"pid": pid, "started": started}))
        (folder / "config.json").write_text(json.dumps({"sandbox": {"backend": "local"}}))
    write_orphaned_entry(tmp_path / "sandboxes", "7")
    try:
        stop_everything(ServiceTable(), tmp_path)
        assert engine.wait(240) == -signal.SIGKILL
        assert stranger.poll() is None, "a re-used pid is nobody's engine"
    finally:
        stranger.kill()
        stranger.wait()
    assert list((tmp_path / "sandboxes").glob("*.json")) == []


def test_stopping_reaps_the_backends_of_every_run_with_sandboxes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reaped: list[Any] = []
    monkeypatch.setattr(stopping, "run_reaper", lambda **arguments: reaped.append(arguments["settings"]))
    docker = {"backend": "docker", "docker": {"host": "unix:///nowhere"}, "max_live": 3}
    for run, section in (("1", {"backend": "local"}), ("2", docker), ("3", docker)):
        folder = tmp_path / "runs" / run
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"sandbox": section}))
    stop_everything(ServiceTable(), tmp_path)
    assert reaped == [], "no sandbox is on record"
    for run in ("1", "2", "3", "gone"):
        backend = "docker" if run in "23" else ""
        write_orphaned_entry(tmp_path / "sandboxes" / backend, run)
    stop_everything(ServiceTable(), tmp_path)
    assert reaped == [[{"backend": "local"}, {"backend": "docker", "docker": {"host": "unix:///nowhere"}}]]
