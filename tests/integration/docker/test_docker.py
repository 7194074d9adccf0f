"""Short conformance suite and cleanup on the Docker backend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from engine.config.sandbox import DockerConfig
from engine.sandbox.conformance import Subject
from engine.sandbox.conformance.subject import SECRET
from engine.sandbox.docker.backend import DockerBackend
from engine.sandbox.preflight import preflight
from tests.builders.sandbox_builders import SHORT_CONFORMANCE
from tests.docker_daemon import one_at_a_time

pytestmark = one_at_a_time


@pytest.fixture(scope="module")
def home(home: Path) -> Path:
    (home / "secret").write_text(SECRET)
    return home


@pytest.fixture(scope="module")
def quota(host: str, home: Path) -> bool:
    """Return whether the daemon's storage driver supports disk quotas."""

    async def probe() -> bool:
        backend = DockerBackend(DockerConfig(host=host), home)
        assert [finding for finding in await preflight(backend) if finding.severity == "error"] == []
        await backend.close()
        return backend.quota

    return asyncio.run(probe())


@pytest.fixture
async def backend(host: str, home: Path) -> AsyncIterator[DockerBackend]:
    backend = DockerBackend(DockerConfig(host=host, disk_check_s=0.5), home)
    yield backend
    await backend.close()
    assert list(backend.ledger.entries()) == []


@pytest.fixture
def subject(backend: DockerBackend, quota: bool, home: Path, monkeypatch: pytest.MonkeyPatch) -> Subject:
    monkeypatch.setenv("HOST_SECRET", SECRET)
    return Subject(
        backend=backend,
        image="local:reference",
        secret_file=home / "secret",
        own_root=True,
        disk="layer" if quota else "watched",
    )


@pytest.mark.parametrize("check", SHORT_CONFORMANCE, ids=lambda check: check.__name__)
async def test_docker_backend_conforms(check: Callable[[Subject], Awaitable[None]], subject: Subject) -> None:
    await check(subject)
