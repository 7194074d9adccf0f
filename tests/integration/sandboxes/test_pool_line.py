"""Sandbox pool on local sandboxes and a real spool: leases are recorded early and survive ``kill -9``."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from engine.config.sandbox import SandboxConfig
from engine.events.delivery.spool import SPOOL_NAME, SpoolSink, read_lines
from engine.sandbox.base import SandboxLimits, SandboxSpec
from engine.sandbox.ledger import LedgerEntry
from engine.sandbox.local.backend import LocalBackend
from engine.sandbox.local.images import build_image
from engine.sandbox.pool.pool import SandboxPool
from engine.types import RunState
from tests.builders.web.web_builders import launched
from webapp.ingestion.services import ingest
from webapp.models import Pool, Reaper, Sandbox
from webapp.runs.services import attempts
from webapp.sandboxes import selectors as reads
from workers import reaper

REPO = Path(__file__).parents[3]
_ENGINE = """
import asyncio, sys
from pathlib import Path
from engine.config.sandbox import SandboxConfig
from engine.events.delivery.spool import SpoolSink
from engine.events.types import RunStarted
from engine.sandbox.pool import report
from engine.sandbox.local.backend import LocalBackend
from engine.sandbox.pool.pool import SandboxPool
from engine.sandbox.base import SandboxLimits, SandboxSpec

async def main(home, run_dir, run_id):
    report.REPORT_S = 0.05
    sink = SpoolSink(Path(run_dir), epoch=1)
    sink.emit(RunStarted, host="h", pid=1)
    pool = SandboxPool(LocalBackend(Path(home)), SandboxConfig(max_live=3, max_starting=1), sink=sink)
    limits = SandboxLimits(memory_mb=96, processes=16, disk_mb=16)
    spec = SandboxSpec(image="tree", run_id=run_id, name="train/0/t/0", lane="train", limits=limits)
    ready = []

    async def hold():
        async with pool.open(spec) as box:
            ready.append(box.id)
            await box.exec("sleep 600", timeout_s=600)

    tasks = [asyncio.create_task(hold()) for _ in range(5)]
    while len(ready) < 3 or pool.starting:
        await asyncio.sleep(0.01)
    print("ready", flush=True)
    await asyncio.gather(*tasks)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    (folder / "source").mkdir()
    (folder / "source" / "a.py").write_text("x = 1\n")
    build_image(folder, "tree", folder / "source")
    return folder


def spooled(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line.data) for line in read_lines(run_dir / SPOOL_NAME)]


def leases(run_dir: Path) -> dict[str, str]:
    """Return the newest state of each lease."""
    return {
        record["lease"]: record["state"]
        for event in spooled(run_dir)
        if event["type"] == "sandboxes_changed"
        for record in event["records"]
    }


def reported(run_dir: Path, **status: int) -> bool:
    """Return whether every lease is reported as started and the newest status has these numbers."""
    newest = [event for event in spooled(run_dir) if event["type"] == "pool_status"][-1:]
    started = set(leases(run_dir).values()) == {"started"}
    return started and bool(newest) and status.items() <= newest[0].items()


async def test_leases_are_spooled_before_their_sandboxes_start(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = LocalBackend(home)
    counts: list[tuple[int, int]] = []
    write = backend.ledger.write

    def watched(entry: LedgerEntry) -> None:
        if not entry.pid:
            counts.append((len(leases(tmp_path)), 1 + len(list(backend.ledger.entries()))))
        write(entry)

    monkeypatch.setattr(backend.ledger, "write", watched)
    with contextlib.closing(SpoolSink(tmp_path, epoch=1)) as sink:
        pool = SandboxPool(backend, SandboxConfig(max_live=2, max_starting=1), sink=sink)
        limits = SandboxLimits(memory_mb=96, processes=16, disk_mb=16)
        spec = SandboxSpec(image="tree", limits=limits)
        async with pool.open(spec) as first, pool.open(spec) as second:
            assert [(await box.exec("echo hello", timeout_s=30)).stdout for box in (first, second)] == [
                b"hello\n"
            ] * 2
        await pool.close()
    assert all(recorded >= existing for recorded, existing in counts)
    assert len(counts) == 2
    assert set(leases(tmp_path).values()) == {"closed"}
    status = spooled(tmp_path)[-1]
    assert (status["type"], status["live"], status["wanted"], status["opened"]) == ("pool_status", 0, 0, 2)
    assert sum(status["clocks"]["start"]["counts"]) == 2


@pytest.fixture
def killed(home: Path, tmp_path: Path, settings: Any) -> tuple[int, Path]:
    """Id and folder of a run whose engine was killed with open sandboxes."""
    settings.TRAINYARD_HOME = home
    run, _ = launched()
    arguments = [str(home), str(tmp_path), str(run.pk)]
    with subprocess.Popen(
        [sys.executable, "-c", _ENGINE, *arguments], cwd=REPO, stdout=subprocess.PIPE, text=True
    ) as engine:
        try:
            assert engine.stdout is not None
            assert engine.stdout.readline() == "ready\n"
            deadline = time.monotonic() + 120
            while not reported(tmp_path, live=3, waiting=2):
                assert time.monotonic() < deadline, spooled(tmp_path)
                time.sleep(0.02)
        finally:
            engine.send_signal(signal.SIGKILL)
    return run.pk, tmp_path


@pytest.mark.django_db
def test_leases_of_a_killed_engine_are_ingested_and_their_sandboxes_reaped(
    home: Path, killed: tuple[int, Path]
) -> None:
    run_id, run_dir = killed
    assert sorted(leases(run_dir).values()) == ["started"] * 3, "two more were waiting, for no box"
    ingest.ingest_spool(run_id=run_id, path=run_dir / SPOOL_NAME)
    assert Sandbox.objects.filter(run_id=run_id, state=Sandbox.State.STARTED).count() == 3
    newest = Pool.objects.get(run_id=run_id)
    assert (newest.live, newest.waiting, newest.wanted) == (3, 2, 5)
    backend = LocalBackend(home)
    owned = {entry.id for entry in backend.ledger.entries() if entry.run_id == str(run_id)}
    assert owned == set(Sandbox.objects.filter(run_id=run_id).values_list("sandbox_id", flat=True))
    assert reaper.reap()
    assert [entry for entry in backend.ledger.entries() if entry.run_id == str(run_id)] == []
    assert Reaper.objects.get(backend="local").removed == 3
    attempts.give_up(run_id=run_id, epoch=1, to=RunState.FAILED, reason="its process was killed")
    assert set(Sandbox.objects.filter(run_id=run_id).values_list("state", flat=True)) == {"lost"}
    assert reads.open_sandboxes() == ([], 0)
