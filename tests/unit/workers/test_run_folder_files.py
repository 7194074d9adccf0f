"""Files of a run folder that other processes read are replaced, never rewritten in place."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine.config.recipes import resolve
from engine.orchestrator import note_failure
from engine.orchestrator.context import RunContext
from engine.processes import process_start
from webapp.runs.services import attempts
from webapp.runs.services.attempts import Claim
from workers import rundir
from workers.launchers.base import LaunchOrder
from workers.launchers.local import LocalLauncher


def write_failure(run_dir: Path) -> None:
    note_failure(cast(RunContext, SimpleNamespace(epoch=1, run_dir=run_dir)), "it failed")


def launch(run_dir: Path) -> None:
    handles: list[str] = []
    LocalLauncher(("true",)).launch(
        LaunchOrder(run_dir=run_dir, name="one"), lambda _, handle: handles.append(handle)
    )
    record = json.loads((run_dir / "engine.pid").read_text())
    assert handles == [f"{record['pid']}:{record['started']}"]
    os.waitpid(record["pid"], 0)
    assert process_start(record["pid"]) is None


def prepare(run_dir: Path) -> None:
    config = resolve("quickstart").model_dump(mode="json")
    assert rundir.prepare(Claim(run_id=int(run_dir.name), epoch=2, token="t", config=config)) == run_dir


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("write", "names"),
    [
        (launch, ("engine.pid",)),
        (prepare, ("config.json", "launch.json")),
        (write_failure, ("failure.json",)),
    ],
)
def test_a_reader_of_a_replaced_file_keeps_the_old_content(
    write: Callable[[Path], None],
    names: tuple[str, ...],
    settings: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings.TRAINYARD_HOME = tmp_path
    monkeypatch.setattr(attempts, "preparing", lambda **_: None)
    run_dir = tmp_path / "runs" / "7"
    run_dir.mkdir(parents=True)
    for name in names:
        (run_dir / name).write_text("old")
    readers = {name: (run_dir / name).open() for name in names}
    write(run_dir)
    for name, reader in readers.items():
        with reader:
            assert reader.read() == "old", f"{name} was written in place"
        assert json.loads((run_dir / name).read_text())
    assert not list(run_dir.glob(".*"))
    if "launch.json" in names:
        assert (run_dir / "launch.json").stat().st_mode & 0o777 == 0o600
