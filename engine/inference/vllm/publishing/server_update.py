"""Update of one vLLM server to a version of the weights, proof included."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.errors import EngineError
from engine.inference.base import GenerationContext, GenerationRequest, SamplingParams
from engine.inference.vllm.clients.client import VllmClient
from engine.inference.vllm.publishing.proof import Checksums, Tolerance, compare_logprobs, differences
from engine.types import RolloutKey, Task, TaskAnswer, TaskRow

_TASK = Task(id="probe", instance_id="probe", repo="", base_commit="", problem_statement="", image="")
_CONTEXT = GenerationContext(
    key=RolloutKey(iteration=0, phase="probe", task_id=_TASK.id, index=0),
    row=TaskRow(task=_TASK, answer=TaskAnswer(gold_patch=""), split="probe"),
)
"""Placeholder for the rollout that every request needs."""
_POLL_S = 0.05
_COUNTERS_S = 30.0
"""Maximum time until a server's counters include a request that has ended, seconds."""
_RESUME_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A version of the weights, with the probe that proves it."""

    number: int
    probe: tuple[int, ...]
    expected: list[float]
    """The trainer's log-probabilities of the probe's tokens after the first."""
    folder: Path
    """Folder of the weights' files; absent where they were sent without files."""
    adapter: str = ""
    """Name of the LoRA adapter; empty: the weights are the model's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaProof:
    """Outcome of a publication at one server."""

    client: VllmClient
    failure: str = ""
    """Reason why the server must not be used; empty: it has proven to serve the version."""
    difference: float = math.nan
    """Greatest difference of the probe's log-probabilities to the trainer's; NaN if not measured."""
    checksums: Checksums | None = None
    seconds: float = 0.0


class NotProvenError(Exception):
    """The server does not prove the version; the message is the reason."""


class ServerUpdate:
    """Steps of one server's update: ``prepare``, ``load`` or ``stamp``, ``finish``, ``prove``.

    Args:
        client: client of the server.
        version: version to serve.
        mode: what happens to requests in flight.
        allowed: tolerance of log-probabilities.
    """

    def __init__(
        self,
        client: VllmClient,
        version: Version,
        *,
        mode: Literal["finish", "keep", "abort"],
        allowed: Tolerance,
    ) -> None:
        self.client = client
        self._version = version
        self._mode = mode
        self._allowed = allowed
        self._is_paused = False
        self._has_planted = False
        self._began = time.monotonic()
        self.difference = math.nan

    async def prepare(self) -> None:
        """Put the probe into the prefix cache, to test its reset later, and pause the server."""
        if self._mode != "keep" or await self._is_idle():  # a busy server might queue it
            await self._sample()
            self._has_planted = True
        self._is_paused = True  # also when the pause is cancelled half-way
        await self.client.pause(self._mode)

    async def load(self) -> None:
        """Load the version's files into the server."""
        version = self._version
        if version.adapter:
            with contextlib.suppress(EngineError):  # left by an earlier attempt
                await self.client.unload_adapter(version.adapter)
            await self.client.load_adapter(version.adapter, version.folder, version=version.number)
        else:
            await self.client.load_weights(version.folder, version.number)

    async def stamp(self) -> None:
        """Stamp tokens with the version: its weights were sent without files."""
        await self.client.set_version(self._version.number)

    async def finish(self) -> None:
        """Reset the prefix cache and resume the server."""
        await self.client.reset_prefix_cache()
        if self._is_paused:
            await self.client.resume()
            self._is_paused = False

    async def prove(self) -> Checksums:
        """Compare log-probabilities with the trainer's; return checksums. Raises NotProvenError."""
        version = self._version
        if not version.adapter:
            served = await self.client.served_version()
            if served != version.number:
                raise NotProvenError(f"it stamps version {served} on its tokens")
        token, logprob = await self._sample_uncached()
        ids = [*version.probe, token]
        *logprobs, rescored = await self.client.prompt_logprobs(ids, model=version.adapter)
        self.difference = differences(logprobs, version.expected)[1]
        if reason := compare_logprobs(logprobs, version.expected, self._allowed):
            raise NotProvenError(reason)
        if reason := compare_logprobs([logprob], [rescored], self._allowed):
            raise NotProvenError(f"its prefix cache holds other weights: sampled {reason}")
        return await self.client.checksums()

    async def give_up(self) -> None:
        """Resume the server, in case it is still used by others."""
        if self._is_paused:
            with contextlib.suppress(EngineError, TimeoutError):
                async with asyncio.timeout(_RESUME_S):
                    await self.client.resume()

    def outcome(self, failure: str = "", checksums: Checksums | None = None) -> ReplicaProof:
        """Return the outcome so far."""
        return ReplicaProof(
            client=self.client,
            failure=failure,
            difference=self.difference,
            checksums=checksums,
            seconds=time.monotonic() - self._began,
        )

    async def _sample_uncached(self) -> tuple[int, float]:
        """Return a token sampled after the probe, and its log-probability.

        Raises:
            NotProvenError: the server found the probe in its prefix cache.
        """
        before = await self.client.metrics()
        if not self._has_planted or before.running or before.waiting:  # counters include all requests
            return await self._sample()
        sampled = await self._sample()
        deadline = time.monotonic() + _COUNTERS_S
        while (now := await self.client.metrics()).prefix_queries == before.prefix_queries:
            if time.monotonic() > deadline:
                raise NotProvenError("its prefix cache counters do not increase")
            await asyncio.sleep(_POLL_S)
        if now.prefix_hits > before.prefix_hits:
            raise NotProvenError(
                f"its prefix cache was not reset: it still had {now.prefix_hits - before.prefix_hits} tokens "
                "of a prompt from before the update"
            )
        return sampled

    async def _is_idle(self) -> bool:
        load = await self.client.metrics()
        return not load.running and not load.waiting

    async def _sample(self) -> tuple[int, float]:
        version = self._version
        request = GenerationRequest(
            prompt_ids=version.probe,
            sampling=SamplingParams(temperature=1.0, max_tokens=1),
            seed=version.number,
            stop_ids=frozenset(),
            context=_CONTEXT,
        )
        generation = await self.client.generate(
            request,
            request_id=f"probe-{version.number}-{time.monotonic_ns()}",
            model=version.adapter,
            salt=str(version.number),  # as in the policy's requests of this version
        )
        return generation.ids[0], generation.logprobs[0]
