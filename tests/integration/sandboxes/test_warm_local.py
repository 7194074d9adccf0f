"""Warm local sandboxes: unused, within the limits, and removed with their owner."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.config.sandbox import LocalConfig, SandboxConfig
from engine.sandbox.backends import make_backend
from engine.sandbox.base import SandboxLimits, SandboxSpec
from engine.sandbox.conformance import CHECKS, Subject, reference_tree
from engine.sandbox.conformance.subject import SECRET
from engine.sandbox.ledger import LedgerEntry
from engine.sandbox.local.backend import LocalBackend
from engine.sandbox.local.images import build_image
from engine.sandbox.warm import WarmSettings

REPO = Path(__file__).parents[3]
_PATIENCE_S = 120.0
LIMITS = SandboxLimits(memory_mb=96, processes=32, disk_mb=32)
SETTINGS = WarmSettings(per_image=3, idle_s=600.0, max_live=6, at_once=1, limits=LIMITS, run_id="warm-run")
SPEC = SandboxSpec(image="local:reference", run_id="used", name="key", limits=LIMITS)
CHECKED = (
    "a_sandbox_ends_with_its_lifetime",
    "there_is_no_network",
    "nothing_of_the_host_is_visible",
    "the_diff_of_every_kind_of_edit_applies_to_a_fresh_sandbox",
    "there_are_no_privileges",
    "a_status_cannot_be_forged",
    "a_full_disk_stays_inside",
    "a_deadline_kills_the_whole_tree_and_keeps_the_output",
)

_OWNER = """
import asyncio, json, sys
from pathlib import Path
from engine.sandbox.base import SandboxLimits, SandboxSpec
from engine.sandbox.local.backend import LocalBackend
from engine.sandbox.warm import WarmSettings

async def main(home, ready):
    limits = SandboxLimits(memory_mb=96, processes=16, disk_mb=16)
    settings = WarmSettings(per_image=4, idle_s=600.0, max_live=8, at_once=2, limits=limits, run_id="owned")
    backend = LocalBackend(Path(home), warm=settings)
    async with backend.open(SandboxSpec(image="reference", run_id="owned", limits=limits)):
        await backend.prepare({"reference": 4})
        while backend.population().idle < ready:
            await asyncio.sleep(0.001)
        print(json.dumps("ready"), flush=True)
        await asyncio.sleep(600)

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "tree").mkdir()
    reference_tree(tmp_path / "tree")
    build_image(tmp_path, "reference", tmp_path / "tree")
    (tmp_path / "secret").write_text(SECRET)
    return tmp_path


@pytest.fixture
async def backend(home: Path) -> AsyncIterator[LocalBackend]:
    backend = LocalBackend(home, warm=SETTINGS)
    yield backend
    groups = [path for entry in backend.ledger.entries() for path in entry.cgroups]
    await backend.close()
    assert backend.population().existing == 0
    assert list(backend.ledger.entries()) == []
    assert not any(Path(path).exists() for path in groups)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)


def processes_of(entries: list[LedgerEntry]) -> list[int]:
    return [entry.pid for entry in entries if entry.alive()]


async def test_request_gets_an_unused_warm_sandbox(backend: LocalBackend) -> None:
    await backend.prepare({"local:reference": 2})
    await until(lambda: backend.population().idle == 2)
    warm = {entry.id: entry for entry in backend.ledger.entries()}
    assert {(entry.run_id, entry.name) for entry in warm.values()} == {("warm-run", "warm")}
    used = set()
    for _ in range(2):
        async with backend.open(replace(SPEC, env={"COLOUR": "red"})) as box:
            assert box.startup.warm
            used.add(box.id)
            (entry,) = (candidate for candidate in backend.ledger.entries() if candidate.id == box.id)
            assert (entry.run_id, entry.name) == ("used", "key")
            assert 0 < entry.deadline - time.monotonic() <= LIMITS.lifetime_s
            result = await box.exec("ls /tmp; cat a.txt; echo $COLOUR", timeout_s=_PATIENCE_S)
            assert result.stdout == b"first\nsecond\nthird\nred\n"
            await box.exec("touch /tmp/mine; echo changed > a.txt", timeout_s=_PATIENCE_S)
    assert used == set(warm)
    async with backend.open(SPEC) as box:
        assert not box.startup.warm
        assert backend.population().existing == 1


async def test_warm_sandboxes_share_no_namespace(backend: LocalBackend) -> None:
    await backend.prepare({"local:reference": 2})
    await until(lambda: backend.population().idle == 2)
    kinds = ("ipc", "mnt", "net", "pid", "user", "uts")
    script = "".join(f"readlink /proc/self/ns/{kind};" for kind in kinds)
    async with backend.open(SPEC) as first, backend.open(SPEC) as second:
        assert first.startup.warm
        assert second.startup.warm
        first_spaces, second_spaces = [
            (await box.exec(script, timeout_s=_PATIENCE_S)).stdout.split() for box in (first, second)
        ]
    assert len(first_spaces) == len(kinds)
    assert not set(first_spaces) & set(second_spaces)


@pytest.mark.parametrize("at_once", [1, 4])
async def test_warm_sandboxes_never_displace_requested_ones(home: Path, at_once: int) -> None:
    settings = replace(SETTINGS, max_live=5, at_once=at_once)
    backend = LocalBackend(home, warm=settings)
    build_image(home, "another", home / "tree")
    opened: list[bool] = []
    populations: list[int] = []
    finished = asyncio.Event()

    async def hold() -> None:
        async with backend.open(SPEC) as box:
            opened.append(box.startup.warm)
            await finished.wait()

    async def watch() -> None:
        while not finished.is_set():
            populations.append(backend.population().existing)
            await asyncio.sleep(0.001)

    async with asyncio.TaskGroup() as group:
        group.create_task(watch())
        await backend.prepare({"local:another": 2})
        group.create_task(hold())
        await until(lambda: len(opened) == 1)
        await backend.prepare({"local:reference": 9, "local:another": 9})
        await until(lambda: backend.population().idle == settings.max_live - 1)
        for _ in range(settings.max_live - 1):
            group.create_task(hold())
        await until(lambda: len(opened) == settings.max_live)
        await until(lambda: backend.population().existing == settings.max_live)
        finished.set()
    assert sorted(opened) == [False] * 4 + [True]
    assert max(populations) == settings.max_live
    await backend.close()
    assert list(backend.ledger.entries()) == []


async def test_cancelled_claim_leaks_no_sandbox(backend: LocalBackend) -> None:
    await backend.prepare({"local:reference": 1})
    claim = asyncio.create_task(backend.open(SPEC).__aenter__())
    await until(lambda: backend.population().existing == 1)
    await backend.prepare({})
    claim.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claim
    await until(lambda: backend.population().existing == 0)


async def test_unused_warm_sandboxes_are_removed(home: Path) -> None:
    backend = LocalBackend(home, warm=replace(SETTINGS, idle_s=0.3))
    await backend.prepare({"local:reference": 2})
    await until(lambda: backend.population().idle > 0)
    await until(lambda: backend.population().existing == 0)
    assert list(backend.ledger.entries()) == []
    backend = LocalBackend(home, warm=SETTINGS)
    await backend.prepare({"local:reference": 2})
    await until(lambda: backend.population().idle == 2)
    await backend.prepare({})
    await until(lambda: backend.population().existing == 0)
    await backend.close()


async def test_zero_per_image_disables_warm_sandboxes(home: Path) -> None:
    backend = make_backend(SandboxConfig(local=LocalConfig(warm_per_image=0)), home)
    assert isinstance(backend, LocalBackend)
    await backend.prepare({"local:reference": 2})
    async with backend.open(SPEC) as box:
        assert not box.startup.warm
        assert backend.population().existing == 1
    assert backend.population().existing == 0


async def test_requests_get_no_older_build_or_other_limits(backend: LocalBackend, home: Path) -> None:
    await backend.prepare({"local:reference": 1})
    await until(lambda: backend.population().idle == 1)
    async with backend.open(replace(SPEC, limits=replace(LIMITS, memory_mb=128))) as box:
        assert not box.startup.warm
    (home / "tree" / "a.txt").write_text("built again\n")
    build_image(home, "reference", home / "tree")
    async with backend.open(SPEC) as box:
        assert not box.startup.warm
        assert await box.read_file("a.txt") == b"built again\n"


async def test_dead_warm_sandbox_is_not_handed_out(backend: LocalBackend) -> None:
    await backend.prepare({"local:reference": 1})
    await until(lambda: backend.population().idle == 1)
    (entry,) = backend.ledger.entries()
    os.kill(entry.pid, signal.SIGKILL)
    await until(lambda: not entry.alive())
    async with backend.open(SPEC) as box:
        assert box.id != entry.id
        assert (await box.exec("echo fine", timeout_s=_PATIENCE_S)).stdout == b"fine\n"


async def test_images_that_cannot_start_are_not_warmed(backend: LocalBackend, home: Path) -> None:
    (home / "file").touch()
    build_image(home, "broken", home / "tree", binds={"/opt/tool": str(home / "file")})
    await backend.prepare({"local:nothing": 2, "local:broken": 2, "local:reference": 1})
    await until(lambda: backend.population().idle == 1)
    await until(lambda: backend.population().existing == 1)


@pytest.mark.parametrize("name", CHECKED)
async def test_warm_sandbox_conforms(
    name: str, backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = {check.__name__: check for check in CHECKS}
    monkeypatch.setenv("HOST_SECRET", SECRET)
    await backend.prepare({"local:reference": 3})
    await until(lambda: backend.population().idle == 3)
    subject = Subject(
        backend=backend, image="local:reference", secret_file=backend.home / "secret", limits=LIMITS
    )
    await checks[name](subject)


@pytest.mark.parametrize("ready", [0, 2, 4], ids=["while they start", "some ready", "all ready"])
async def test_killed_owner_leaves_no_warm_sandboxes(home: Path, ready: int) -> None:
    backend = LocalBackend(home)
    command: list[Any] = [sys.executable, "-c", _OWNER, str(home), str(ready)]
    with subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout is not None
            assert json.loads(owner.stdout.readline()) == "ready"
            entries = list(backend.ledger.entries())
            assert len(entries) > ready
            assert await backend.reap() == 0
        finally:
            owner.kill()
    await until(lambda: not processes_of(list(backend.ledger.entries())))
    entries = list(backend.ledger.entries())
    assert await backend.reap(run_id="owned") == len(entries)
    assert list(backend.ledger.entries()) == []
    assert not any(Path(path).exists() for entry in entries for path in entry.cgroups)
