"""Image pulls of the Docker backend, by a real daemon from a fake registry."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import docker
import docker.errors
import pytest

from engine.config.sandbox import DockerConfig
from engine.errors import ImageError
from engine.sandbox.docker.daemon import Daemon, find_daemon
from engine.sandbox.docker.images import Images
from tests.docker_daemon import docker_host, one_at_a_time
from tests.fakes.registry import FakeRegistry, fake_registry

pytestmark = one_at_a_time


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with fake_registry() as registry:
        yield registry


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    daemon = Daemon(find_daemon(docker_host(), tmp_path_factory.mktemp("home")), 60)
    yield daemon
    daemon.close()


@pytest.fixture
async def names(daemon: Daemon, registry: FakeRegistry) -> AsyncIterator[list[str]]:
    """Names of images that the daemon does not have; the images are removed afterwards."""
    image_names = [registry.image(f"test/{secrets.token_hex(4)}") for _ in range(4)]
    yield image_names

    def remove(client: docker.APIClient) -> None:
        for name in image_names:
            with contextlib.suppress(docker.errors.ImageNotFound):
                client.remove_image(name, force=True)

    await daemon.call(remove)


def images(daemon: Daemon, home: Path, **settings: Any) -> Images:
    return Images(daemon, DockerConfig(**{"pull_backoff_s": 0.02, **settings}), home)


def present(daemon: Daemon, name: str) -> bool:
    try:
        daemon.client.inspect_image(name)
    except docker.errors.ImageNotFound:
        return False
    return True


def short(name: str) -> str:
    return name.partition("/")[2].removesuffix(":latest")


async def test_concurrent_requests_share_one_image_pull(
    daemon: Daemon, registry: FakeRegistry, names: list[str], tmp_path: Path
) -> None:
    store = images(daemon, tmp_path)
    results = await asyncio.gather(*(store.ensure(names[0]) for _ in range(8)))
    assert len({image.id for image, _ in results}) == 1
    assert registry.pulls[short(names[0])] == 1
    assert all(seconds > 0 for _, seconds in results)
    cached, _ = await store.ensure(names[0])
    other, _ = await images(daemon, tmp_path).ensure(names[0])
    assert cached == other == results[0][0]
    assert registry.pulls[short(names[0])] == 1


async def test_busy_registry_is_retried_a_limited_number_of_times(
    daemon: Daemon, registry: FakeRegistry, names: list[str], tmp_path: Path
) -> None:
    registry.faults.extend([429, 500, 429])
    image, _ = await images(daemon, tmp_path).ensure(names[0])
    assert image.name == names[0]
    assert not registry.faults, "a busy registry is asked again"
    registry.faults.extend([429] * 50)
    with pytest.raises(ImageError, match=r"could not be pulled in 3 attempts: .*toomanyrequests"):
        await images(daemon, tmp_path, pull_retries=2).ensure(names[1])


async def test_credentials_come_from_the_configured_file(
    daemon: Daemon, registry: FakeRegistry, names: list[str], tmp_path: Path
) -> None:
    registry.login = ("ann", "secret")
    with pytest.raises(ImageError, match="docker login"):
        await images(daemon, tmp_path, pull_backoff_s=1000.0).ensure(names[0])
    auth = base64.b64encode(b"ann:secret").decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {registry.address: {"auth": auth}}}))
    image, _ = await images(daemon, tmp_path, registry_config=str(tmp_path / "config.json")).ensure(names[0])
    assert present(daemon, image.id)


async def test_image_budget_removes_least_recently_used_images_but_none_in_use(
    daemon: Daemon, registry: FakeRegistry, names: list[str], tmp_path: Path
) -> None:
    registry.layer_bytes = 1_000_000
    store = images(daemon, tmp_path, image_budget_gb=0.0022)
    in_use, oldest, newer, newest = names
    for age, name in ((300, in_use), (200, oldest), (100, newer)):
        image, _ = await store.ensure(name)
        record = store._record(image.id)
        os.utime(record, (record.stat().st_atime - age, record.stat().st_mtime - age))
        if name == in_use:
            container = daemon.client.create_container(image.id, ["/nothing"])["Id"]
    try:
        await store.ensure(newest)
        assert [present(daemon, name) for name in names] == [True, False, False, True]
        await store.ensure(oldest)  # pulls the image again
        assert registry.pulls[short(oldest)] == 2
    finally:
        daemon.client.remove_container(container)


async def test_an_imported_local_image_displaces_old_ones_beyond_the_budget(
    daemon: Daemon, home: Path, names: list[str]
) -> None:
    store = images(daemon, home, image_budget_gb=1e-6)
    await store.ensure(names[0])
    try:
        await store.ensure("local:reference")
        assert not present(daemon, names[0])
    finally:
        await store.remove("local:reference")


async def test_a_cancelled_caller_does_not_stop_the_pull_of_others(
    daemon: Daemon, registry: FakeRegistry, names: list[str], tmp_path: Path
) -> None:
    registry.faults.extend([429, 429])
    store = images(daemon, tmp_path)
    first = asyncio.ensure_future(store.ensure(names[0]))
    second = asyncio.ensure_future(store.ensure(names[0]))
    await asyncio.sleep(0)
    first.cancel()
    image, _ = await second
    assert first.cancelled()
    assert present(daemon, image.id)


async def test_pulled_image_is_used_although_the_image_cleanup_failed(
    daemon: Daemon, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_busy(_client: docker.APIClient) -> dict[str, Any]:
        raise docker.errors.APIError("a disk usage operation is already running")

    monkeypatch.setattr(docker.APIClient, "df", too_busy)
    image, _ = await images(daemon, tmp_path, image_budget_gb=0.001).ensure(names[0])
    assert present(daemon, image.name)
