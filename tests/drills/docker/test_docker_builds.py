"""Images that a dataset defines by a Dockerfile, built by a real daemon."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.build_contexts import PREFIX, image_of, pack_context, store_context
from engine.config.sandbox import DockerConfig
from engine.errors import ImageError
from engine.sandbox.docker.builds import tag_of
from engine.sandbox.docker.daemon import Daemon, find_daemon
from engine.sandbox.docker.images import Images
from tests.docker_daemon import docker_host, one_at_a_time
from tests.drills.docker.test_docker_life import imported, with_libraries

pytestmark = one_at_a_time


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    daemon = Daemon(find_daemon(docker_host(), tmp_path_factory.mktemp("home")), 60)
    yield daemon
    daemon.close()


def context(home: Path, dockerfile: str, **files: str) -> str:
    """Store a unique build context and return the name of its image."""
    folder = home / secrets.token_hex(4)
    folder.mkdir()
    (folder / "Dockerfile").write_text(dockerfile)
    for name, content in {**files, "salt": secrets.token_hex(8)}.items():
        (folder / name).write_text(content)
    packed = pack_context(folder)
    assert pack_context(folder) == packed
    store_context(home, packed)
    return image_of(packed)


def images(daemon: Daemon, home: Path, registries: tuple[str, ...] = ("*",), **settings: Any) -> Images:
    config = DockerConfig(**{"build_network": "none", **settings})
    return Images(daemon, config, home, registries=registries)


def remove(daemon: Daemon, name: str, registries: tuple[str, ...] = ("*",)) -> None:
    daemon.client.remove_image(tag_of(name, registries), force=True)


async def test_image_is_built_once_and_only_with_a_granted_network(daemon: Daemon, tmp_path: Path) -> None:
    name = context(tmp_path, "FROM scratch\nCOPY data.txt /data.txt\nLABEL of=test\n", **{"data.txt": "x"})
    with pytest.raises(ImageError, match="administrator grant sandbox.docker.build_network"):
        await images(daemon, tmp_path, build_network="").ensure(name)
    image, _ = await images(daemon, tmp_path).ensure(name)
    try:
        assert daemon.client.inspect_image(image.id)["Config"]["Labels"] == {"of": "test"}
        cached, _ = await images(daemon, tmp_path, build_network="").ensure(name)
        assert cached.id == image.id
    finally:
        remove(daemon, name)


@pytest.mark.parametrize(
    ("dockerfile", "settings", "message"),
    [
        ("FROM scratch\nCOPY gone /\n", {}, "failed: COPY failed"),
        ("FROM scratch\nRUN true\n", {}, "failed: "),
        ("FROM scratch\nCOPY big /big\n", {"build_disk_mb": 16}, "has 17 MiB; at most 16 MiB are allowed"),
    ],
)
async def test_failed_build_reports_the_reason_and_leaves_no_image(
    daemon: Daemon, tmp_path: Path, dockerfile: str, settings: dict[str, Any], message: str
) -> None:
    files = {"big": "x" * (17 << 20)} if "big" in dockerfile else {}
    name = context(tmp_path, dockerfile, **files)
    with pytest.raises(ImageError, match=message):
        await images(daemon, tmp_path, **settings).ensure(name)
    with pytest.raises(ImageError, match="administrator"):
        await images(daemon, tmp_path, build_network="").ensure(name)


@pytest.mark.parametrize(
    ("dockerfile", "message"),
    [
        (
            "FROM registry.invalid/a:1\n",
            "'registry.invalid/a:1' is from 'registry.invalid'",
        ),
        ("from --platform=linux/amd64 \\\n # hidden\n python:3 As x\n", "is from 'docker.io'"),
        ("FROM scratch\nCOPY --from=registry.invalid/a /x /x\n", "is from 'registry.invalid'"),
        ("FROM scratch\nCOPY --fr\\om=registry.invalid/a /x /x\n", "quotes in a flag"),
    ],
)
async def test_build_rejects_images_of_other_registries(
    daemon: Daemon, tmp_path: Path, dockerfile: str, message: str
) -> None:
    with pytest.raises(ImageError, match=message):
        await images(daemon, tmp_path, ("ghcr.io",)).ensure(context(tmp_path, dockerfile))


async def test_build_stages_are_not_checked_as_registry_images(daemon: Daemon, tmp_path: Path) -> None:
    name = context(
        tmp_path,
        "FROM scratch AS First\nCOPY data.txt /a\nFROM first\nCOPY --from=First /a /b\nCOPY --from=0 /a /c\n",
        **{"data.txt": "x"},
    )
    await images(daemon, tmp_path, ()).ensure(name)
    remove(daemon, name, ())


async def test_missing_context_and_invalid_image_name_raise_image_errors(
    daemon: Daemon, tmp_path: Path
) -> None:
    with pytest.raises(ImageError, match="import its dataset again"):
        await images(daemon, tmp_path).ensure(f"{PREFIX}{'0' * 24}")
    with pytest.raises(ImageError, match="is not the name of an image"):
        await images(daemon, tmp_path).ensure(f"{PREFIX}../../etc/passwd")


@pytest.fixture(scope="module")
def base() -> str:
    """An image with the host's shell and ``sleep``."""
    return imported(docker_host(), "builds", with_libraries("/bin/sh", "/bin/sleep"))


async def test_build_steps_have_no_network(daemon: Daemon, tmp_path: Path, base: str) -> None:
    count = "n=0; while read -r line; do n=$((n+1)); done < /proc/net/dev; test $n -eq 3"
    name = context(tmp_path, f"FROM {base}\nRUN {count}\n")
    await images(daemon, tmp_path).ensure(name)
    remove(daemon, name)


async def test_build_rejects_output_that_imitates_steps(daemon: Daemon, tmp_path: Path, base: str) -> None:
    name = context(tmp_path, f"FROM {base}\nRUN echo 'Step 3/3 : FROM scratch AS x'\nLABEL a=b\n")
    with pytest.raises(ImageError, match="imitates steps"):
        await images(daemon, tmp_path, ("docker.io",)).ensure(name)


async def test_build_is_ended_at_its_timeout(daemon: Daemon, tmp_path: Path, base: str) -> None:
    name = context(tmp_path, f"FROM {base}\nRUN sleep 600\n")
    with pytest.raises(ImageError, match="took more than 3 s"):
        await images(daemon, tmp_path, build_timeout_s=3.0).ensure(name)
    deadline = time.monotonic() + 120
    while any("sleep 600" in row["Command"] for row in daemon.client.containers()):
        assert time.monotonic() < deadline, "the step still runs"
        await asyncio.sleep(0.2)
