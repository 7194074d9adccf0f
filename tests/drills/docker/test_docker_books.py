"""Bookkeeping of the Docker backend: its population of containers and the original files of an image."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import docker
import pytest

from engine.config.sandbox import DockerConfig
from engine.sandbox.base import Population, SandboxLimits, SandboxSpec
from engine.sandbox.docker.backend import DockerBackend
from engine.sandbox.docker.reaper import remove
from engine.sandbox.local.images import build_image
from tests.docker_daemon import docker_host, one_at_a_time

pytestmark = one_at_a_time

FILES = 150
SPEC = SandboxSpec(
    image="local:many", run_id="books", limits=SandboxLimits(memory_mb=96, processes=32, disk_mb=32)
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    tree = folder / "tree"
    for number in range(FILES):
        path = tree / f"d{number % 7}" / f"f{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"line {number}\n")
    (tree / "second name").hardlink_to(tree / "d0" / "f0")
    (tree / "link").symlink_to("d1/f1")
    (tree / "tool.sh").write_text("#!/bin/sh\n")
    (tree / "tool.sh").chmod(0o755)
    build_image(folder, "many", tree)
    return folder


@pytest.fixture
async def backend(home: Path) -> AsyncIterator[DockerBackend]:
    backend = DockerBackend(DockerConfig(host=docker_host()), home)
    yield backend
    await backend.close()
    assert list(backend.ledger.entries()) == []


async def test_population_counts_containers_from_creation_to_removal(
    backend: DockerBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert backend.population() == Population(existing=0)
    node = str((await backend.facts())["Name"])
    opening = backend.open(SPEC)
    starting = asyncio.ensure_future(opening.__aenter__())
    while not backend.population().existing:
        assert not starting.done()
        await asyncio.sleep(0.001)
    box = await starting
    assert backend.population() == Population(existing=1, nodes={node: 1})
    # The daemon is too busy to remove the closed container, which therefore still exists.
    monkeypatch.setattr("engine.sandbox.docker.container._REMOVE_PAUSES_S", ())
    monkeypatch.setattr("engine.sandbox.docker.container.remove", lambda _client, _name: False)
    await box.close()
    assert backend.population().existing == 1
    monkeypatch.setattr("engine.sandbox.docker.container.remove", remove)
    await backend.reap(run_id="books")
    assert backend.population() == Population(existing=0)


async def test_failed_start_leaves_no_container_in_the_population(
    backend: DockerBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_client: docker.APIClient, _container: str) -> None:
        raise docker.errors.APIError("no more today")

    monkeypatch.setattr("engine.sandbox.docker.backend._ATTEMPTS", 1)
    monkeypatch.setattr(docker.APIClient, "start", refuse)
    with pytest.raises(Exception, match="no more today"):
        await backend.open(SPEC).__aenter__()
    assert backend.population().existing == 0


async def test_diff_of_a_whole_tree_requests_one_archive(
    backend: DockerBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[str] = []
    get_archive = docker.APIClient.get_archive

    def counted(client: docker.APIClient, container: str, path: str) -> object:
        requested.append(path)
        return get_archive(client, container, path)

    async with backend.open(SPEC) as box:
        assert (await box.exec("rm -rf ./*", timeout_s=20)).exit_code == 0
        monkeypatch.setattr(docker.APIClient, "get_archive", counted)
        patch = await box.diff()
    assert requested[0] == "/testbed"
    assert len(requested) <= 2, "the second name of a file is asked for by name"
    assert patch.count("\ndeleted file mode ") == FILES + 3
    async with backend.open(SPEC) as box:
        await box.apply_patch(patch)
        assert (await box.exec("find . -type f -o -type l", timeout_s=20)).stdout == b""
