"""Warm containers, and the removal of containers after their owner was killed."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import pytest

from engine.config.sandbox import DockerConfig, SandboxConfig
from engine.sandbox.backends import make_backend
from engine.sandbox.base import SandboxLimits, SandboxSpec
from engine.sandbox.docker.backend import DockerBackend
from engine.sandbox.docker.container_spec import OWNER, ROLE, RUN_ID, ContainerOwner
from engine.sandbox.warm import WarmSettings
from tests.docker_daemon import one_at_a_time

pytestmark = one_at_a_time

REPO = Path(__file__).parents[3]
_PATIENCE_S = 120.0
LIMITS = SandboxLimits(memory_mb=96, processes=32, disk_mb=32)

_OWNER = """
import asyncio, sys
from pathlib import Path
from engine.config.sandbox import DockerConfig
from engine.sandbox.base import SandboxLimits, SandboxSpec
from engine.sandbox.docker.backend import DockerBackend
from engine.sandbox.docker.container_spec import ContainerOwner
from engine.sandbox.warm import WarmSettings

async def main(home, host, run, ready):
    limits = SandboxLimits(memory_mb=96, processes=32, disk_mb=32)
    settings = WarmSettings(per_image=3, idle_s=600.0, max_live=8, at_once=2, limits=limits, run_id=run)
    backend = DockerBackend(DockerConfig(host=host), Path(home), warm=settings)
    async with backend.open(SandboxSpec(image="local:reference", run_id=run, limits=limits)) as box:
        await box.exec("echo more >> a.txt", timeout_s=60)
        await box.diff()
        await backend.prepare({"local:reference": 3})
        while backend.population().idle < ready:
            await asyncio.sleep(0.001)
        print("ready", ContainerOwner.this().label(), flush=True)
        await box.exec("(setsid sleep 7777 &) ; sleep 7777", timeout_s=600)

asyncio.run(main(*sys.argv[1:4], int(sys.argv[4])))
"""


@pytest.fixture
def run() -> str:
    return f"left-{secrets.token_hex(4)}"


@pytest.fixture
async def backend(host: str, home: Path, run: str) -> AsyncIterator[DockerBackend]:
    backend = DockerBackend(DockerConfig(host=host), home, warm=settings_of(run))
    yield backend
    await backend.close()
    assert backend.population().existing == 0
    assert list(backend.ledger.entries()) == []
    assert containers(host, f"{OWNER}={ContainerOwner.this().label()}") == []


def settings_of(run: str) -> WarmSettings:
    return WarmSettings(per_image=2, idle_s=600.0, max_live=3, at_once=2, limits=LIMITS, run_id=run)


def request_of(run: str) -> SandboxSpec:
    return SandboxSpec(image="local:reference", run_id=run, name="key", limits=LIMITS)


def containers(host: str, label: str) -> list[dict[str, Any]]:
    client = docker.APIClient(base_url=host, version="auto")
    try:
        rows: list[dict[str, Any]] = client.containers(all=True, filters={"label": label})
        return rows
    finally:
        client.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("ready", [0, 3], ids=["while they start", "all ready"])
async def test_reaper_removes_every_container_of_a_killed_owner(
    host: str, home: Path, run: str, ready: int
) -> None:
    backend = DockerBackend(DockerConfig(host=host), home)
    await backend.images.ensure("local:reference")
    (backend.home / "sandboxes/docker").mkdir(parents=True, exist_ok=True)
    await backend.reap()  # leftovers of interrupted tests
    before = set(home.rglob("*"))
    command = [sys.executable, "-c", _OWNER, str(home), host, run, str(ready)]
    with subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout is not None
            lines = iter(owner.stdout.readline, "")
            label = next(line for line in lines if line.startswith("ready")).partition(" ")[2].strip()
            assert len(containers(host, f"{RUN_ID}={run}")) > ready
            assert await backend.reap(run_id=run) == 0
        finally:
            owner.kill()
    # Even without a reaper, the agents exit when the owner's connections end.
    owned = f"{OWNER}={label}"
    await until(lambda: not [row for row in containers(host, owned) if row["State"] == "running"])
    assert await backend.reap(run_id="another") == 0
    removed = await backend.reap(run_id=run)
    while [*containers(host, f"{RUN_ID}={run}"), *backend.ledger.entries()]:  # one was still starting
        await asyncio.sleep(0.1)
        removed += await backend.reap(run_id=run)
    assert removed > ready
    await backend.reap()  # the container of original files belongs to no run
    assert containers(host, owned) == []
    assert set(home.rglob("*")) == before
    await backend.close()


async def test_request_gets_a_warm_container(backend: DockerBackend, host: str, run: str) -> None:
    await backend.prepare({"local:reference": 2})
    await until(lambda: backend.population().idle == 2)
    rows = containers(host, f"{RUN_ID}={run}")
    assert {row["Labels"][ROLE] for row in rows} == {"sandbox"}
    warm_ids = {entry.id for entry in backend.ledger.entries()}
    async with backend.open(replace(request_of(run), env={"COLOUR": "red"})) as box:
        assert box.startup.warm
        assert box.id in warm_ids
        (entry,) = (candidate for candidate in backend.ledger.entries() if candidate.id == box.id)
        assert (entry.run_id, entry.name) == (run, "key")
        assert 0 < entry.deadline - time.monotonic() <= LIMITS.lifetime_s
        result = await box.exec("cat a.txt; echo $COLOUR; echo more >> a.txt", timeout_s=_PATIENCE_S)
        assert result.stdout == b"first\nsecond\nthird\nred\n"
        assert "+more" in await box.diff()
    async with backend.open(replace(request_of(run), run_id="another")) as box:
        assert not box.startup.warm  # its labels would name the wrong run


async def test_warm_container_killed_while_idle_is_not_handed_out(
    backend: DockerBackend, host: str, run: str
) -> None:
    await backend.prepare({"local:reference": 1})
    await until(lambda: backend.population().idle == 1)
    (row,) = containers(host, f"{RUN_ID}={run}")
    await backend.daemon.call(lambda client: client.kill(row["Id"]))
    async with backend.open(request_of(run)) as box:
        assert (await box.exec("echo fine", timeout_s=_PATIENCE_S)).stdout == b"fine\n"


async def test_reaper_removes_warm_containers_of_a_hanging_owner_at_their_deadline(
    backend: DockerBackend, host: str, home: Path, run: str
) -> None:
    await backend.prepare({"local:reference": 1})
    await until(lambda: backend.population().idle == 1)
    other = DockerBackend(DockerConfig(host=host), home)
    assert await other.reap(run_id=run) == 0
    (entry,) = backend.ledger.entries()
    backend.ledger.write(replace(entry, deadline=time.monotonic() - 100))
    assert await other.reap(run_id=run) == 1
    assert containers(host, f"{RUN_ID}={run}") == []
    assert list(backend.ledger.entries()) == []
    await other.close()


async def test_closing_during_warm_starts_leaves_no_container(host: str, home: Path, run: str) -> None:
    for pause in (0.0, 0.05, 0.2):
        backend = DockerBackend(DockerConfig(host=host), home, warm=settings_of(run))
        await backend.prepare({"local:reference": 2})
        await asyncio.sleep(pause)
        await backend.close()
        assert list(backend.ledger.entries()) == []
        assert containers(host, f"{RUN_ID}={run}") == []


async def test_warm_per_image_of_zero_disables_warm_containers(host: str, home: Path, run: str) -> None:
    config = SandboxConfig(backend="docker", docker=DockerConfig(host=host, warm_per_image=0))
    backend = make_backend(config, home, run_id=run)
    assert isinstance(backend, DockerBackend)
    await backend.prepare({"local:reference": 2})
    async with backend.open(request_of(run)) as box:
        assert not box.startup.warm
        assert len(containers(host, f"{RUN_ID}={run}")) == 1
    await backend.close()
    assert containers(host, f"{RUN_ID}={run}") == []
