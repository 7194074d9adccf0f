"""Real vLLM servers, shared by the tests that leave them intact."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from engine.errors import PreflightError
from engine.inference.vllm.clients.client import VllmClient
from engine.inference.vllm.servers.environment import find_interpreter
from engine.inference.vllm.servers.server import VllmServer
from tests.drills.vllm.servers import QUICKSTART, command


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Raise the timeouts: a start takes minutes on a busy machine, and a test waits for several."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(3600))


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """Path of an interpreter with vLLM."""
    try:
        return find_interpreter()
    except PreflightError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def vllm_server(vllm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """A server of the shipped quickstart model, in float32."""
    server = VllmServer(command(QUICKSTART, vllm_python), log=tmp_path_factory.mktemp("vllm") / "vllm.log")
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


@pytest.fixture
async def client(vllm_server: VllmServer) -> AsyncIterator[VllmClient]:
    """A client of the quickstart server that has read the size of its vocabulary."""
    client = vllm_server.client()
    await client.check()
    yield client
    await client.close()
