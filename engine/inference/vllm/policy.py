"""VllmPolicy: vLLM servers as one trainable policy.

A trajectory stays on its replica for the prefix cache (``admission``); an engine that fails is restarted or
left out (``fleet``), and its requests continue elsewhere from the tokens received (``continuation``). No
replica samples before it has proven the current weights.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Sequence
from typing import Protocol

from engine.config.policies import VllmConfig
from engine.errors import EngineError, ModelError, PublicationError
from engine.events.delivery.sink import EventSink
from engine.inference.base import Generation, GenerationRequest, TrainablePolicy, WeightSource
from engine.inference.vllm.admission import Admission
from engine.inference.vllm.clients.client import VllmClient
from engine.inference.vllm.continuation import Response
from engine.inference.vllm.fleet import Fleet, Prover
from engine.inference.vllm.monitor import Monitor
from engine.inference.vllm.publishing.publication import PublicationReport
from engine.inference.vllm.replicas import Replica, ReplicaState
from engine.inference.waits import Waits
from engine.models.chat.base import Chat
from engine.types import RolloutKey

MAX_FAILURES = 12
"""Engine failures after which a request itself is considered the cause."""


class Publisher(Prover, Protocol):
    """Interface that publishes weights to servers and verifies what they serve."""

    @property
    def model(self) -> str:
        """Return the name by which requests select the current weights."""

    async def publish(
        self, version: int, weights: WeightSource, clients: Sequence[VllmClient]
    ) -> PublicationReport:
        """Publish a version to all servers; requests in flight are treated as configured."""


class _InterruptedError(Exception):
    """The policy itself aborted a request on an engine; the whole request is sent again."""


class VllmPolicy(TrainablePolicy):
    """Policy that samples with vLLM servers; call ``start``, then ``publish`` before the first request.

    Args:
        replicas: one for each server.
        publisher: publishes weights to servers and verifies them.
        config: limits and times.
        chat: the model's chat format.
        max_context: maximum length of a prompt and its response, tokens.
        sink: receives events about the engines; None reports nothing.
        name: display name.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        publisher: Publisher,
        config: VllmConfig,
        *,
        chat: Chat,
        max_context: int,
        sink: EventSink | None = None,
        name: str = "vllm",
    ) -> None:
        self.name = name
        self.chat = chat
        self.version = 0
        self.max_context: int | None = max_context
        self._publisher = publisher
        self._config = config
        self._admission = Admission(replicas, share=config.cache_share)
        self._monitor = Monitor(replicas, self._admission, sink=sink)
        self._fleet = Fleet(replicas, config, prover=publisher, observer=self._monitor)
        self._open = asyncio.Event()
        """Set while requests may be sent: not during a publication."""
        self._open.set()
        self._waits = Waits()
        self._closed = False
        self._prefix, self._counter = secrets.token_hex(4), itertools.count()

    def start(self) -> None:
        """Start all servers in the background; ``publish`` waits for them."""
        self._fleet.start()
        self._monitor.start(self._fleet.fail)

    async def close(self) -> None:
        """Stop our own servers; requests in flight fail with ModelError."""
        self._closed = True
        self._admission.lose("the policy is closed")
        await self._monitor.close()
        await self._fleet.close()

    def release(self, key: RolloutKey) -> None:
        """Forget a rollout that has ended: its room in the KV cache is free for others."""
        self._admission.release(key)
        self._waits.release(key)

    def waited_seconds(self, key: RolloutKey) -> float:
        """Return the time that a rollout waited for room, for publications and for engines that failed."""
        return self._waits.seconds(key)

    async def take_metrics(self) -> dict[str, float]:
        """Return the engines' metrics since the last call."""
        return await self._monitor.take_metrics()

    # --- sampling ----------------------------------------------------------------------------------

    async def generate(self, request: GenerationRequest) -> Generation:
        """Sample a completion, on several engines if some fail.

        Raises:
            ModelError: the request is impossible, no engine is left, or every engine fails at it.
        """
        self._check(request)
        key, tokens = request.context.key, 0
        self._monitor.request_began(key.iteration)
        self._waits.begin(key)
        try:
            generation = await self._generate(request)
            tokens = len(generation.ids)
            return generation
        finally:
            self._waits.end(key)
            self._monitor.request_ended(tokens)

    def _check(self, request: GenerationRequest) -> None:
        wanted = len(request.prompt_ids) + request.sampling.max_tokens
        if not request.prompt_ids or request.sampling.max_tokens < 1:
            raise ModelError("nothing to sample: the prompt is empty or max_tokens is 0")
        if self.max_context is not None and wanted > self.max_context:
            raise ModelError(
                f"prompt ({len(request.prompt_ids)}) plus max_tokens ({request.sampling.max_tokens}) "
                f"exceeds the model's context of {self.max_context} tokens"
            )

    async def _generate(self, request: GenerationRequest) -> Generation:
        response, failures = Response(request), list[EngineError]()
        while len(failures) < MAX_FAILURES:
            replica = await self._replica(request, response, retried=bool(failures))
            self._waits.sent(request.context.key)
            incarnation = replica.incarnation
            if self._config.in_flight != "keep":
                assert replica.version is not None
                response.drop_unless(replica.version)
            try:
                return response.complete(await self._send(replica, response.next_request()))
            except _InterruptedError:
                self._waits.failed(request.context.key)
                continue
            except EngineError as error:
                self._waits.failed(request.context.key)
                if error.kind == "refused" or self._closed:
                    raise
                if error.kind != "aborted":
                    failures.append(error)
                    await self._fleet.request_failed(replica, incarnation, error)
                if error.kind != "garbage" and incarnation >= replica.trusted_from:
                    response.keep(error.tokens)
            if (whole := response.finished()) is not None:
                return whole
        last = failures[-1]
        raise ModelError(f"{len(failures)} attempts failed, the last because {last}") from last

    async def _replica(self, request: GenerationRequest, response: Response, *, retried: bool) -> Replica:
        """Wait for the conversation's place and the end of publications; return its replica."""
        while True:
            if self._closed:
                raise ModelError("the policy is closed")
            conversation = await self._admission.place(
                request.context.key,
                tokens=response.tokens,
                room=response.room,
                has_begun=retried or request.context.has_begun,
            )
            await self._open.wait()
            if conversation.replica is not None and conversation.replica.is_ready:
                return conversation.replica

    async def _send(self, replica: Replica, request: GenerationRequest) -> Generation:
        """Sample on one replica. Raises EngineError, _InterruptedError."""
        incarnation, version = replica.incarnation, replica.version
        sampling = asyncio.ensure_future(
            replica.client.generate(
                request,
                request_id=f"{self._prefix}-{next(self._counter)}",
                model=self._publisher.model,
                salt=str(version),
            )
        )
        replica.requests.add(sampling)
        try:
            generation = await sampling
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is None or current.cancelling():
                raise
            raise _InterruptedError from None
        finally:
            replica.requests.discard(sampling)
            if self._config.in_flight == "keep":  # frozen requests resume before the weights are proven
                await self._open.wait()
        if incarnation < replica.trusted_from:
            raise _InterruptedError
        self._check_version(generation, replica, version)
        return generation

    def _check_version(self, generation: Generation, replica: Replica, version: int | None) -> None:
        if self._config.in_flight != "keep" and set(generation.versions) != {version}:
            raise EngineError(
                f"{replica.name} sampled with version {sorted(set(generation.versions))}, but had proven "
                f"{version}",
                kind="garbage",
            )

    # --- publication -------------------------------------------------------------------------------

    async def publish(self, version: int, weights: WeightSource) -> dict[str, float]:
        """Publish the trainer's weights to every replica that is up; those that prove them serve again.

        Failed replicas are restarted and prove the weights later; this waits for them only if no other one
        serves.

        Raises:
            PublicationError: no replica is left that proves to serve the weights.
        """
        began = time.monotonic()
        if self._fleet.version is None:
            await self._fleet.started()
        self._open.clear()
        try:
            async with self._fleet.weights:
                metrics = await self._publish(version, weights)
        finally:
            self._open.set()
        if not await self._fleet.any_ready():
            raise PublicationError(
                f"no engine proves that it serves version {version}: "
                + "; ".join(f"{replica.name}: {replica.detail}" for replica in self._fleet.replicas)
            )
        return metrics | {"publish/seconds": time.monotonic() - began}

    async def _publish(self, version: int, weights: WeightSource) -> dict[str, float]:
        """Publish to the replicas that are up; restart those that fail the proof."""
        if self._config.in_flight == "finish":
            await self._finish()
        replicas = [r for r in self._fleet.replicas if r.is_up]  # after the wait: one may have failed
        for replica in replicas:
            self._fleet.set_state(replica, ReplicaState.PUBLISHING, f"receives version {version}")
        try:
            report = await self._publisher.publish(version, weights, [replica.client for replica in replicas])
        except BaseException:
            self._fleet.reset_proofs(replicas)
            raise
        self.version = self._fleet.version = version
        for replica, proof in zip(replicas, report.replicas, strict=True):
            if proof.failure:
                message = f"{replica.name} does not serve version {version}: {proof.failure}"
                self._monitor.alert("warning", "publication_failed", message)
                self._fleet.fail(replica, proof.failure, trusted=False)
            else:
                self._fleet.mark_ready(replica)
        return report.metrics()

    async def _finish(self) -> None:
        """Wait for the requests in flight; those that fail are sent again after the publication."""
        while requests := [task for replica in self._fleet.replicas for task in replica.requests]:
            await asyncio.wait(requests)
            await asyncio.sleep(0)  # lets their callers run first
