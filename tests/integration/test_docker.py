"""The Docker backend passes the conformance suite on a real daemon, and leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from engine.config.sandbox import DockerConfig
from engine.sandbox.conformance import CHECKS, Subject, reference_tree
from engine.sandbox.conformance.subject import SECRET
from engine.sandbox.docker.backend import DockerBackend
from engine.sandbox.images import build_image
from tests.docker_daemon import docker_host


@pytest.fixture(scope="module")
def host() -> str:
    return docker_host()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    (folder / "tree").mkdir()
    reference_tree(folder / "tree")
    build_image(folder, "reference", folder / "tree")
    (folder / "secret").write_text(SECRET)
    return folder


@pytest.fixture(scope="module")
def quota(host: str, home: Path) -> bool:
    """Whether this daemon's storage driver limits what a container writes."""

    async def probe() -> bool:
        backend = DockerBackend(DockerConfig(host=host), home)
        assert [line for line in await backend.preflight() if not line.startswith("Weaker:")] == []
        await backend.close()
        return backend.quota

    return asyncio.run(probe())


@pytest.fixture
async def backend(host: str, home: Path) -> AsyncIterator[DockerBackend]:
    backend = DockerBackend(DockerConfig(host=host, disk_check_s=0.5), home)
    yield backend
    await backend.close()
    assert list(backend.ledger.entries()) == []


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_conformance(
    check: Callable[[Subject], Awaitable[None]],
    backend: DockerBackend,
    quota: bool,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOST_SECRET", SECRET)
    subject = Subject(
        backend=backend,
        image="local:reference",
        secret_file=home / "secret",
        own_root=True,
        disk="layer" if quota else "watched",
    )
    await check(subject)
