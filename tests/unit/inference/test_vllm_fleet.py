"""Servers started by a policy: limited restarts, proof before serving, and leaving out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from engine.config.policies import VllmConfig
from engine.errors import EngineError, ModelError, PublicationError
from engine.inference.vllm.clients.client import VllmClient
from engine.inference.vllm.clients.facts import ServerFacts
from engine.inference.vllm.policy import VllmPolicy
from engine.inference.vllm.replicas import STABLE_S, Replica, ReplicaState
from engine.inference.vllm.servers.server import VllmServer
from engine.models.chat.chatml import ChatML
from tests.builders.vllm_policies import NoWeights, Recorder, Stamps, make_request, until
from tests.fakes.vllm_server import FakeVllm, Fault
from tests.unit.models.small import tokenizer


class Server:
    """Fake server in the test's event loop; its first ``broken`` starts fail."""

    log = Path("server.log")

    def __init__(self, broken: int = 0) -> None:
        self.broken, self.starts = broken, 0
        self.fake = FakeVllm()
        self._serving: Any = None

    async def start(self) -> ServerFacts:
        self.starts += 1
        if self.starts <= self.broken:
            raise EngineError("out of memory", kind="lost")
        self.fake = FakeVllm()
        self._serving = self.fake.serving()
        self.address = await self._serving.__aenter__()
        client = self.client()
        facts = await client.check()
        await client.close()
        return facts

    async def stop(self) -> None:
        serving, self._serving = self._serving, None
        if serving is not None:
            await serving.__aexit__(None, None, None)

    def client(self, **settings: Any) -> VllmClient:
        return VllmClient(self.address, **settings)

    def is_alive(self) -> bool:
        return self._serving is not None


@asynccontextmanager
async def started(
    *servers: Server, publisher: Stamps, **settings: Any
) -> AsyncIterator[tuple[VllmPolicy, list[Replica], Recorder]]:
    config = VllmConfig(replicas=len(servers), **{"stall_timeout_s": 30.0, **settings})
    replicas = [
        Replica(name=f"engine-{i}", server=cast(VllmServer, server)) for i, server in enumerate(servers)
    ]
    sink = Recorder()
    policy = VllmPolicy(replicas, publisher, config, chat=ChatML(tokenizer()), max_context=2048, sink=sink)
    policy.start()
    try:
        yield policy, replicas, sink
    finally:
        await policy.close()


async def test_failed_servers_are_restarted_and_proven_up_to_the_limit() -> None:
    server, other, publisher = Server(), Server(), Stamps()
    async with started(server, other, publisher=publisher, max_restarts=2) as (policy, replicas, sink):
        await policy.publish(4, NoWeights())
        for number in (1, 2, 3):
            server.fake.faults.append(Fault(kind="nan", requests=-1))
            while replicas[0].is_ready:
                policy.release(make_request().context.key)
                assert set((await policy.generate(make_request())).versions) == {4}
            await until(lambda: replicas[0].is_ready or replicas[0].is_left_out)
            assert server.starts == min(1 + number, 3)
            assert replicas[0].is_left_out is (number == 3)
        assert (replicas[0].restarts, publisher.restored) == (2, 2)
        assert "restarted 2 times" in replicas[0].detail
        assert "its log is server.log" in replicas[0].detail
        assert sink.alerts() == ["engine_restarted", "engine_restarted", "engine_left_out"]
        assert not server.is_alive()
        assert set((await policy.generate(make_request(1))).versions) == {4}
        assert (await policy.take_metrics())["engine/restarts"] == 2.0
    assert not other.is_alive()


async def test_only_stable_servers_are_restarted_beyond_the_limit() -> None:
    server, publisher = Server(), Stamps()
    async with started(server, Server(), publisher=publisher, max_restarts=1) as (policy, replicas, sink):
        await policy.publish(4, NoWeights())
        failing = replicas[0]
        for served_s in (STABLE_S, STABLE_S, 0.0):
            assert failing.serving_since is not None
            failing.serving_since -= served_s
            server.fake.faults.append(Fault(kind="nan", requests=-1))
            while failing.is_ready:
                policy.release(make_request().context.key)
                await policy.generate(make_request())
            await until(lambda: failing.is_ready or failing.is_left_out)
        assert failing.is_left_out
        assert sink.alerts() == ["engine_restarted", "engine_restarted", "engine_left_out"]


async def test_restarted_servers_without_proof_do_not_serve(
    skip_time: Callable[[float], None],
) -> None:
    server, publisher = Server(), Stamps()
    settings: Any = {"max_restarts": 2, "stall_timeout_s": 600.0}
    async with started(server, publisher=publisher, **settings) as (policy, replicas, sink):
        await policy.publish(0, NoWeights())
        publisher.never = True
        server.fake.faults.append(Fault(kind="oom"))
        generating = asyncio.create_task(policy.generate(make_request()))
        await until(lambda: "engines_lost" in sink.alerts())
        skip_time(601.0)
        with pytest.raises(ModelError, match="does not prove that it serves version 0"):
            await generating
        assert replicas[0].is_left_out


async def test_servers_that_cannot_start_fail_the_publication() -> None:
    async with started(Server(broken=9), publisher=Stamps(), max_restarts=1) as (policy, replicas, sink):
        with pytest.raises(PublicationError, match=r"engine-0.*out of memory"):
            await policy.publish(0, NoWeights())
        assert replicas[0].state is ReplicaState.LEFT_OUT
        assert sink.alerts() == ["engine_restarted", "engine_left_out", "engines_lost"]
