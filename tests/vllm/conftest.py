"""Real vLLM servers for tests: started once, shared by the tests that do not harm them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from engine.errors import PreflightError
from engine.inference.vllm.clients.client import VllmClient
from engine.inference.vllm.servers.environment import find_interpreter
from engine.inference.vllm.servers.server import VllmServer
from tests.vllm.servers import QUICKSTART, command


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run what needs vLLM on request only: a start takes longer than most tests.

    On a busy machine a start takes minutes, and a test waits for several.
    """
    is_wanted = "vllm" in config.getoption("markexpr")
    for item in items:
        if item.get_closest_marker("vllm") is None:  # folders named vllm are keywords too
            continue
        if is_wanted:
            item.add_marker(pytest.mark.timeout(3600))
        else:
            item.add_marker(pytest.mark.skip(reason="needs vLLM's environment: `make test-vllm`"))


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """Interpreter with vLLM."""
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
    """A client of the quickstart server, which knows the size of its vocabulary."""
    client = vllm_server.client()
    await client.check()
    yield client
    await client.close()
