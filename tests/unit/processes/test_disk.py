"""Disk watch: a run ends when its folder is too large or the disk is nearly full."""

from __future__ import annotations

import os
import queue
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine import run as engine_run
from engine.orchestrator.context import RunContext
from engine.processes.disk import DiskWatch, folder_bytes
from engine.run import Launch, create_run_dir, run_attempt


def test_folder_size_counts_allocated_bytes_once(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside/file").write_bytes(os.urandom(200_000))
    with (tmp_path / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 40)
    (tmp_path / "link").symlink_to(tmp_path / "inside/file")
    (tmp_path / "inside/same").hardlink_to(tmp_path / "inside/file")
    assert 200_000 <= folder_bytes(tmp_path) < 300_000


@pytest.mark.parametrize(
    ("limit", "free", "reason"), [(1e5, 1e12, "more than disk_gb allows"), (1e9, 4e8, "400 MB left")]
)
def test_a_large_folder_or_a_full_disk_is_reported_with_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: float, free: float, reason: str
) -> None:
    (tmp_path / "file").write_bytes(os.urandom(200_000))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    reasons: queue.Queue[str] = queue.Queue()
    with DiskWatch(tmp_path, limit, reasons.put):
        assert reason in reasons.get(timeout=300)


def test_run_with_an_oversized_folder_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reasons: list[str] = []

    def until_stopped(_: object, run: RunContext) -> int:
        while not run.must_end:
            time.sleep(0.01)
        reasons.append(run.control.stop_reason)
        return 0

    monkeypatch.setattr(engine_run, "execute", until_stopped)
    run_dir = create_run_dir("quickstart-oracle", {"disk_gb": 1e-6}, home=tmp_path)
    assert run_attempt(run_dir, Launch.load(run_dir)) == 0
    assert len(reasons) == 1
    assert "more than disk_gb allows" in reasons[0]
