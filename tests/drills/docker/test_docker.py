"""The Docker backend passes the conformance suite on a real daemon, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import io
import tarfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import docker
import docker.errors
import pytest

from engine.config.sandbox import DockerConfig
from engine.errors import ImageError
from engine.sandbox.base import SandboxSpec
from engine.sandbox.conformance import CHECKS, Subject, files, hostility, reference_tree
from engine.sandbox.docker.backend import DockerBackend
from tests.docker_daemon import one_at_a_time
from tests.integration.docker.test_docker import backend, home, quota, subject

__all__ = ["backend", "home", "quota", "subject"]  # fixtures

pytestmark = one_at_a_time


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_conformance(check: Callable[[Subject], Awaitable[None]], subject: Subject) -> None:
    await check(subject)


BASE = "trainyard/debian-python:bookworm"
AS_ROOT = [check for check in CHECKS if check.__module__ in (files.__name__, hostility.__name__)]


@pytest.fixture(scope="module")
def root_image(host: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Debian image whose files and workdir belong to root, as in published datasets."""
    client = docker.APIClient(base_url=host, version="auto")
    try:
        client.inspect_image(BASE)
    except docker.errors.ImageNotFound:
        pytest.skip(f"no image {BASE} to build on; `make docker-examples` makes it")
    tree = tmp_path_factory.mktemp("tree")
    reference_tree(tree)
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as tar:
        text = f"FROM {BASE}\nCOPY tree/ /testbed/\n".encode()
        info = tarfile.TarInfo("Dockerfile")
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text))
        tar.add(tree, "tree")
    context.seek(0)
    image = "trainyard/test-reference:latest"
    events = client.build(fileobj=context, custom_context=True, tag=image, rm=True, decode=True)
    assert [event["error"] for event in events if "error" in event] == []
    return image


@pytest.mark.parametrize("check", AS_ROOT, ids=lambda check: check.__name__)
async def test_conformance_of_an_image_owned_by_root(
    check: Callable[[Subject], Awaitable[None]], subject: Subject, root_image: str
) -> None:
    await check(replace(subject, image=root_image, uid=0))


async def test_daemon_behind_tcp_runs_all_images_except_local_ones(
    host: str, root_image: str, home: Path
) -> None:
    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_unix_connection(host.removeprefix("unix://"))
        await asyncio.gather(pipe(reader, upstream_writer), pipe(upstream_reader, writer))

    if not host.startswith("unix://"):
        pytest.skip("the daemon is not on a unix socket that could be forwarded")
    server = await asyncio.start_server(forward, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    backend = DockerBackend(DockerConfig(host=f"tcp://127.0.0.1:{port}"), home)
    async with backend.open(SandboxSpec(image=root_image)) as box:
        await box.exec("echo more >> a.txt", timeout_s=20)
        assert "+more" in await box.diff()
    with pytest.raises(ImageError, match="exists only on this machine"):
        async with backend.open(SandboxSpec(image="local:reference")):
            pass
    await backend.close()
    server.close()
