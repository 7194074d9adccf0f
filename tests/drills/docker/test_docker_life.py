"""Lifecycle of Docker sandboxes: killed owners, containers and daemons, and failed starts."""

from __future__ import annotations

import asyncio
import io
import os
import re
import secrets
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import docker.errors
import pytest

from engine.config.sandbox import DockerConfig
from engine.errors import ImageError, SandboxDiedError, SandboxMemoryError, SandboxStartError
from engine.sandbox.base import ExecResult, SandboxLimits, SandboxSpec
from engine.sandbox.docker.backend import DockerBackend
from engine.sandbox.docker.container_spec import (
    DEADLINE,
    NAME,
    OWNER,
    ROLE,
    RUN_ID,
    SANDBOX_ID,
    ContainerOwner,
    container_config,
    labels,
)
from engine.sandbox.local.images import build_image
from engine.sandbox.preflight import preflight
from tests.docker_daemon import one_at_a_time
from tests.drills.docker.test_docker_leftovers import containers

pytestmark = one_at_a_time

REPO = Path(__file__).parents[3]
_PATIENCE_S = 120.0
SMALL = SandboxLimits(memory_mb=96, processes=32, disk_mb=32)


@pytest.fixture
async def backend(host: str, home: Path) -> AsyncIterator[DockerBackend]:
    backend = DockerBackend(DockerConfig(host=host), home)
    yield backend
    await backend.close()
    assert list(backend.ledger.entries()) == []


def client(host: str) -> docker.APIClient:
    return docker.APIClient(base_url=host, version="auto")


def of_run(host: str, run: str) -> list[dict[str, Any]]:
    return containers(host, f"{RUN_ID}={run}")


def spec(**fields: Any) -> SandboxSpec:
    return SandboxSpec(**{"image": "local:reference", "limits": SMALL, **fields})


async def test_reaper_removes_containers_past_their_deadline(
    host: str, home: Path, backend: DockerBackend
) -> None:
    async with backend.open(spec()) as box:
        image, _ = await backend.images.ensure("local:reference")
        owner = ContainerOwner(host="elsewhere", boot="b", namespace=1, pid=1, start=1)
        expired = {**labels("sb-late", spec(run_id="late"), owner), DEADLINE: str(int(time.time()) - 100)}
        config = container_config(spec(), image, backend.config, labels=expired, quota=False)
        client(host).start(client(host).create_container_from_config(config)["Id"])
        assert [row["State"] for row in of_run(host, "late")] == ["running"]
        assert await backend.reap() >= 1  # orphans of other owners count as well
        assert of_run(host, "late") == []
        assert (await box.exec("echo fine", timeout_s=20)).stdout == b"fine\n"


@pytest.mark.parametrize("way", ["kill", "remove_container"])
async def test_killed_container_raises_a_typed_error(host: str, backend: DockerBackend, way: str) -> None:
    async with backend.open(spec()) as box:
        task = asyncio.ensure_future(box.exec("sleep 600", timeout_s=600))
        await asyncio.sleep(0.2)
        ((_, live),) = backend._live.items()
        force = {"force": True} if way == "remove_container" else {}
        await asyncio.to_thread(lambda: getattr(client(host), way)(live.container_id, **force))
        with pytest.raises(SandboxDiedError, match=r"status 137|was removed"):
            await task
        with pytest.raises(SandboxDiedError):
            await box.read_file("a.txt")


async def test_full_shared_memory_kills_commands_or_raises_sandbox_memory_error(
    backend: DockerBackend,
) -> None:
    limits = SandboxLimits(memory_mb=64, processes=32, disk_mb=256)
    async with backend.open(spec(limits=limits)) as box:
        script = "for n in 1 2 3 4 5 6 7 8; do head -c 16000000 /dev/zero > /dev/shm/$n; done; sleep 20"
        results = await asyncio.gather(
            *(box.exec(script, timeout_s=60) for _ in range(20)), return_exceptions=True
        )
    for result in results:  # the kernel kills either the commands or the agent
        if isinstance(result, ExecResult):
            assert result.exit_code == 137
        else:
            assert isinstance(result, SandboxMemoryError)
            assert "64 MiB" in str(result)


@pytest.fixture
def own_daemon() -> Iterator[tuple[str, Callable[[str], None]]]:
    """A private daemon that tests may stop: its address and ``control(command)``."""
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip("only root can start a Docker daemon, and dockerd must be installed")
    folder = Path(tempfile.mkdtemp(prefix="trainyard-docker-"))
    env = {**os.environ, "TRAINYARD_HOME": str(folder)}

    def control(command: str) -> None:
        done = subprocess.run(
            [REPO / "deploy/setup/docker.sh", command], env=env, capture_output=True, text=True
        )
        if done.returncode != 0:
            pytest.skip(f"no second Docker daemon starts here: {done.stderr}")

    try:
        control("own")
        yield f"unix://{folder}/docker/docker.sock", control
    finally:
        control("stop")
        shutil.rmtree(folder, ignore_errors=True)


async def test_stopped_daemon_raises_typed_errors_and_works_after_a_restart(
    home: Path, own_daemon: tuple[str, Callable[[str], None]], tmp_path: Path
) -> None:
    host, control = own_daemon
    (tmp_path / "images").symlink_to(home / "images")
    backend = DockerBackend(DockerConfig(host=host), tmp_path)
    async with backend.open(spec(run_id="lost")) as box:
        task = asyncio.ensure_future(box.exec("sleep 600", timeout_s=600))
        await asyncio.sleep(0.2)
        await asyncio.to_thread(control, "stop")
        with pytest.raises(SandboxDiedError):
            await task
    with pytest.raises(SandboxStartError, match="does not answer"):
        async with backend.open(spec()):
            pass
    assert len(list(backend.ledger.entries())) > 1
    await asyncio.to_thread(control, "own")
    async with backend.open(spec()) as box:
        assert (await box.exec("echo back", timeout_s=20)).stdout == b"back\n"
    await backend.reap()
    assert of_run(host, "lost") == []
    assert list(backend.ledger.entries()) == []
    await backend.close()


async def test_container_has_owner_labels_and_resource_limits(host: str, backend: DockerBackend) -> None:
    async with backend.open(spec(run_id="r", name="train/0/t/1")):
        ((sandbox, live),) = backend._live.items()
        details = client(host).inspect_container(live.container_id)
        (entry,) = backend.ledger.entries()
        assert (entry.id, entry.run_id, entry.name) == (sandbox, "r", "train/0/t/1")
    stored = details["Config"]["Labels"]
    assert (stored[ROLE], stored[SANDBOX_ID], stored[RUN_ID]) == ("sandbox", sandbox, "r")
    assert stored[NAME] == "train/0/t/1"
    assert ContainerOwner.parse(stored[OWNER]) == ContainerOwner.this()
    assert 0 < float(stored[DEADLINE]) - time.time() < SMALL.lifetime_s
    assert details["HostConfig"]["Memory"] == 96 << 20
    assert details["HostConfig"]["PidsLimit"] == 32
    assert of_run(host, "r") == []


async def test_cancelled_start_leaves_no_container(host: str, backend: DockerBackend) -> None:
    async def opened(run: str) -> None:
        async with backend.open(spec(run_id=run)):
            await asyncio.sleep(600)

    run = f"cancelled-{secrets.token_hex(4)}"
    for pause in (0.0, 0.02, 0.1, 0.2, 0.3):
        task = asyncio.ensure_future(opened(run))
        await asyncio.sleep(pause)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    deadline = time.monotonic() + _PATIENCE_S
    while of_run(host, run) or any(backend.ledger.entries()):
        assert time.monotonic() < deadline, of_run(host, run)
        await asyncio.sleep(0.1)


def imported(host: str, name: str, files: dict[str, str]) -> str:
    """Import an image of copies of the host's files; return its name."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for target, source in files.items():
            tar.add(Path(source).resolve(), target.lstrip("/"))
    tag = f"trainyard/test-{name}"
    client(host).import_image_from_data(archive.getvalue(), repository=tag, tag="latest")
    return f"{tag}:latest"


def with_libraries(*programs: str) -> dict[str, str]:
    """Map programs and their shared libraries to their paths on the host."""
    listed = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True).stdout
    return {path: path for path in (*programs, *re.findall(r"/[\w./+-]+", listed))}


async def test_unusable_images_are_rejected_with_the_reason(host: str, backend: DockerBackend) -> None:
    images = {
        "has no /bin/sh": imported(host, "empty", {"/etc/hosts": "/etc/hosts"}),
        "no Python 3.7": imported(host, "shell", with_libraries("/bin/sh")),
    }
    try:
        for reason, image in images.items():
            with pytest.raises(ImageError, match=reason):
                async with backend.open(spec(image=image)):
                    pass
    finally:
        for image in images.values():
            client(host).remove_image(image, force=True)
    with pytest.raises(ImageError, match="has no folder /elsewhere"):
        async with backend.open(spec(workdir="/elsewhere")):
            pass
    with pytest.raises(ImageError, match="image 'nothing' is not built here"):
        async with backend.open(spec(image="local:nothing")):
            pass


async def test_removed_image_is_fetched_again(host: str, backend: DockerBackend) -> None:
    async with backend.open(spec()) as box:
        await box.exec("true", timeout_s=20)
    await backend.images.ensure("local:reference")
    await DockerBackend(backend.config, backend.home).images.remove("local:reference")
    async with backend.open(spec()) as box:
        assert (await box.exec("echo again", timeout_s=20)).stdout == b"again\n"


async def test_rebuilt_local_image_replaces_the_old_one(backend: DockerBackend, tmp_path: Path) -> None:
    for version in ("one", "two"):
        (tmp_path / "version").write_text(version)
        build_image(backend.home, "rebuilt", tmp_path, env={"COLOUR": version})
        async with backend.open(spec(image="local:rebuilt")) as box:
            result = await box.exec("cat version; echo $COLOUR $HOME", timeout_s=20)
            assert result.stdout.decode() == f"{version}{version} /home/agent\n"
        await backend.images.remove("local:rebuilt")


async def test_diff_reads_originals_from_an_unstarted_container(host: str, backend: DockerBackend) -> None:
    async with backend.open(spec()) as box:
        await box.exec("echo more >> a.txt; rm crlf.bat", timeout_s=20)
        first = await box.diff()
        rows = client(host).containers(all=True, filters={"label": f"{ROLE}=pristine"})
        owned = [row for row in rows if row["Labels"][OWNER] == ContainerOwner.this().label()]
        assert [row["State"] for row in owned] == ["created"]
        client(host).remove_container(owned[0]["Id"], force=True)
        await box.exec("echo less > tool.sh", timeout_s=20)
        second = await box.diff()
    assert "-two\r\n" in first
    assert "tool.sh" in second
    await backend.close()
    rows = client(host).containers(all=True, filters={"label": f"{ROLE}=pristine"})
    assert [row for row in rows if row["Labels"][OWNER] == ContainerOwner.this().label()] == []


async def test_preflight_reports_an_unreachable_daemon(home: Path) -> None:
    backend = DockerBackend(DockerConfig(host="unix:///nowhere/docker.sock"), home)
    (finding,) = await preflight(backend)
    assert (finding.severity, "make docker" in finding.message) == ("error", True)
    await backend.close()


def test_backend_works_in_successive_event_loops(host: str, home: Path) -> None:
    backend = DockerBackend(DockerConfig(host=host), home)

    async def use() -> bytes:
        async with backend.open(spec()) as box:
            return (await box.exec("echo fine", timeout_s=20)).stdout

    assert [asyncio.run(use()) for _ in range(2)] == [b"fine\n"] * 2
    asyncio.run(backend.close())
