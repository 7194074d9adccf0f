"""Policies over fake vLLM servers for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from engine.config.policies import VllmConfig
from engine.errors import EngineError
from engine.inference.base import GenerationContext, GenerationRequest, SamplingParams, WeightSource
from engine.inference.vllm import fleet
from engine.inference.vllm.clients.client import VllmClient
from engine.inference.vllm.policy import Publisher, VllmPolicy
from engine.inference.vllm.publishing.publication import PublicationReport
from engine.inference.vllm.publishing.server_update import ReplicaProof
from engine.inference.vllm.replicas import Replica
from engine.inference.vllm.servers.server import VllmServer
from engine.models.chat.chatml import ChatML
from engine.processes.guarded import GuardedProcess
from engine.types import RolloutKey, Step
from tests.builders.rollout_builders import make_row
from tests.fakes.vllm_script import scripted
from tests.fakes.vllm_server import FakeCommand, FakeVllm
from tests.unit.models.small import tokenizer

STOP = frozenset({7})


class Recorder:
    """Event sink that keeps all events."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def emit(self, event_type: type[Any], /, **fields: Any) -> int:
        number = len(self.events) + 1
        event = event_type(seq=number, epoch=1, time=0.0, **fields)
        self.events.append(event.model_dump())
        return number

    def alerts(self) -> list[str]:
        return [event["code"] for event in self.events if event["type"] == "alert"]


@dataclass
class Stamps:
    """Publisher that only sets versions; ``unproven`` counts the failing verifications of each server."""

    in_flight: Literal["finish", "keep", "abort"] = "finish"
    model: str = ""
    unproven: dict[str, int] = field(default_factory=dict)
    version: int = 0
    restored: int = 0
    never: bool = False
    """Whether all further verifications fail."""
    during: Callable[[], Any] | None = None
    """Awaited during a publication."""
    proving: Callable[[], Any] | None = None
    """Awaited once servers have resumed, before their verification."""

    async def publish(
        self, version: int, weights: WeightSource, clients: Sequence[VllmClient]
    ) -> PublicationReport:
        self.version = version
        pausing = (client.pause(self.in_flight) for client in clients)
        await asyncio.gather(*pausing, return_exceptions=True)
        if self.during is not None:
            await self.during()
        proofs = [ReplicaProof(client=client, failure=await self._update(client)) for client in clients]
        return PublicationReport(version=version, replicas=tuple(proofs), num_bytes=0, seconds=0.0)

    async def _update(self, client: VllmClient) -> str:
        try:
            await client.set_version(self.version)
            await client.resume()
            if self.proving is not None:
                await self.proving()
        except EngineError as error:
            return str(error)
        return "" if self._proves(client) else "log-probabilities of the probe differ"

    async def restore(self, client: VllmClient) -> bool:
        await client.set_version(self.version)
        self.restored += 1
        return self._proves(client)

    def _proves(self, client: VllmClient) -> bool:
        left = self.unproven.get(client.address, 0)
        self.unproven[client.address] = max(left - 1, 0)
        return not left and not self.never


class NoWeights:
    """Weight source that must not be read: ``Stamps`` sends nothing."""

    async def send_weights(self, consumer: Any) -> Any:
        raise AssertionError

    async def logprobs(self, ids: Sequence[int]) -> list[float]:
        raise AssertionError


@dataclass
class Rig:
    """A policy over fake servers that run in the test's own event loop, attached by address."""

    policy: VllmPolicy
    fakes: list[FakeVllm]
    addresses: list[str]
    publisher: Stamps
    sink: Recorder

    @property
    def replicas(self) -> Sequence[Replica]:
        return self.policy._fleet.replicas


@asynccontextmanager
async def attached(
    number: int = 2,
    *,
    publish: bool = True,
    token_s: float = 0.0,
    cache_tokens: int = 10_000,
    publishing: Publisher | None = None,
    **settings: Any,
) -> AsyncIterator[Rig]:
    """Open a policy over attached fakes; with ``publish`` it has published version 0."""
    fakes = [FakeVllm(cache_tokens=cache_tokens, token_s=token_s) for _ in range(number)]
    servings = [fake.serving() for fake in fakes]
    addresses = [await serving.__aenter__() for serving in servings]
    config = VllmConfig(addresses=tuple(addresses), **{"stall_timeout_s": 30.0, **settings})
    replicas = [
        Replica.attached(f"engine-{i}", VllmClient(address, stall_timeout_s=config.stall_timeout_s))
        for i, address in enumerate(addresses)
    ]
    publisher, sink, chat = Stamps(in_flight=config.in_flight), Recorder(), ChatML(tokenizer())
    policy = VllmPolicy(replicas, publishing or publisher, config, chat=chat, max_context=2048, sink=sink)
    policy.start()
    patched = pytest.MonkeyPatch()
    patched.setattr(fleet, "_FIRST_PAUSE_S", 0.01)
    try:
        if publish:
            await policy.publish(0, NoWeights())
        yield Rig(policy, fakes, addresses, publisher, sink)
    finally:
        patched.undo()
        await policy.close()
        for serving in servings:
            await serving.__aexit__(None, None, None)


@asynccontextmanager
async def started(
    tmp_path: Path, *options: tuple[str, ...], publisher: Stamps | None = None, **settings: Any
) -> AsyncIterator[tuple[VllmPolicy, Sequence[Replica], Recorder]]:
    """Open a policy over fakes in separate processes, started and supervised by ``VllmServer``."""
    config = VllmConfig(replicas=len(options), **{"stall_timeout_s": 30.0, **settings})
    replicas = [
        Replica(name=f"engine-{i}", server=VllmServer(FakeCommand(options=flags), log=tmp_path / f"{i}.log"))
        for i, flags in enumerate(options)
    ]
    sink = Recorder()
    policy = VllmPolicy(
        replicas, publisher or Stamps(), config, chat=ChatML(tokenizer()), max_context=2048, sink=sink
    )
    policy.start()
    try:
        yield policy, replicas, sink
    finally:
        await policy.close()


def pid_of(server: VllmServer) -> int:
    """Return the process id of the guard of a started server on this machine."""
    assert isinstance(server.process, GuardedProcess)
    return server.process.pid


def make_request(
    index: int = 0,
    prompt: Sequence[int] = (1, 2, 3),
    *,
    seed: int = 5,
    max_tokens: int = 40,
    turn: int = 0,
    iteration: int = 0,
) -> GenerationRequest:
    steps = tuple(Step(index=i, thought="", response="", call=None, observation="") for i in range(turn))
    key = RolloutKey(iteration=iteration, phase="train", task_id="a" * 16, index=index)
    return GenerationRequest(
        prompt_ids=list(prompt),
        sampling=SamplingParams(max_tokens=max_tokens),
        seed=seed,
        stop_ids=STOP,
        context=GenerationContext(key=key, row=make_row(), steps=steps),
    )


def whole(request: GenerationRequest, weights: str = "") -> tuple[int, ...]:
    """Return the tokens of an undisturbed response."""
    stops = sorted(request.stop_ids)
    return scripted(request.prompt_ids, request.seed, request.sampling.max_tokens, stops, weights).ids


async def until(condition: Callable[[], object], *, timeout_s: float = 60.0) -> None:
    """Poll until the condition is true."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)
