"""TransformerPolicy: one batched KV-cache sampler behind an asyncio front end.

Requests of many rollouts form one batch that sequences join and leave at every step. The forward
runs in one worker thread; weights are shared with the trainer. Each request draws from its own
random stream, so results do not depend on the rest of the batch. A finished sequence's cache is
kept: the trajectory's next turn feeds only its new tokens.
``cache_slots`` assigns cache rows to sequences; to change how tokens are sampled, see ``sampling``.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from engine.errors import ModelError, describe_error
from engine.inference.base import Generation, GenerationRequest, TrainablePolicy, WeightSource
from engine.inference.builtin.cache_slots import CacheSlots
from engine.inference.builtin.sampling import sample
from engine.models.base import LanguageModel
from engine.models.builtin.tiled_cache import TiledCache
from engine.models.builtin.transformer import Transformer
from engine.models.caches.base import Cache
from engine.models.caches.paged import PagedCache
from engine.models.chat.base import Chat
from engine.threads import in_thread

_GATHER_S = 0.002


@dataclass(slots=True, eq=False)
class _Sequence:
    """A request in progress: tokens sampled so far, and the destination of the result."""

    request: GenerationRequest
    future: asyncio.Future[Generation]
    loop: asyncio.AbstractEventLoop
    random: np.random.Generator
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)

    def resolve(self, *, stopped: bool) -> None:
        result = Generation(
            ids=tuple(self.ids),
            logprobs=tuple(self.logprobs),
            versions=tuple(self.versions),
            entropy=tuple(self.entropy),
            stopped=stopped,
        )
        self.loop.call_soon_threadsafe(_set_result, self.future, result)

    def fail(self, error: Exception) -> None:
        self.loop.call_soon_threadsafe(_set_exception, self.future, error)


class TransformerPolicy(TrainablePolicy):
    """Policy that samples a language model for many rollouts at once.

    Args:
        model: on any device; without ``trained``, its weights may change in place between generations: call
            ``set_version`` after each change.
        chat: the model's chat format.
        version: policy version recorded with every token.
        max_batch: maximum number of sequences sampled at once; others are queued.
        low: half-precision type of a published model's matrix products, as in the trainer; None: its own.
        name: display name.
        trained: model in training; ``model`` is a copy, updated with each publication, so that training and
            sampling may overlap, or the copy have half precision.
        threads: torch threads of the forward on a CPU; None: as the process sets them.
    """

    def __init__(
        self,
        model: LanguageModel,
        chat: Chat,
        *,
        version: int = 0,
        max_batch: int = 64,
        low: torch.dtype | None = None,
        name: str = "transformer",
        trained: LanguageModel | None = None,
        threads: int | None = None,
    ) -> None:
        self.name = name
        self.chat = chat
        self.max_context: int | None = model.max_context
        self.version = version
        self._model = model
        self._trained = trained
        self._threads = threads
        self._max_batch = max_batch
        # To add a cache for another implementation: a case here.
        self._cache: Cache = (
            TiledCache(model, max_batch)
            if isinstance(model, Transformer)
            else PagedCache(model, max_batch, low=low)
        )
        self._slots: CacheSlots[_Sequence] = CacheSlots(self._cache, max_batch)
        self._waiting: deque[_Sequence] = deque()
        self._joining: list[_Sequence] = []
        """Requests taken from the queue; some may have no slot yet."""
        self._wake = threading.Condition()
        self._closing = False
        self._drop_caches = False
        self._is_stepping = False
        self._is_published = False
        """True while the sampler has to wait for new weights."""
        self._busy_seconds = 0.0
        self._thread: threading.Thread | None = None

    @property
    def is_batch_invariant(self) -> bool | None:
        """Return whether exact results are independent of the rest of the batch; None before any request."""
        return self._cache.is_invariant

    async def take_metrics(self) -> dict[str, float]:
        """Return ``sampling/batch_invariant`` and ``time/engine_busy``; nothing before any request."""
        if self.is_batch_invariant is None:
            return {}
        busy, self._busy_seconds = self._busy_seconds, 0.0
        return {"sampling/batch_invariant": float(self.is_batch_invariant), "time/engine_busy": busy}

    async def generate(self, request: GenerationRequest) -> Generation:
        """Sample a completion.

        Raises:
            ModelError: the prompt is empty or longer than the model's context, or the forward pass failed.
        """
        limit = self._model.max_context
        if not request.prompt_ids or request.sampling.max_tokens < 1:
            raise ModelError("nothing to sample: the prompt is empty or max_tokens is 0")
        if len(request.prompt_ids) + request.sampling.max_tokens > limit:
            raise ModelError(
                f"prompt ({len(request.prompt_ids)}) plus max_tokens ({request.sampling.max_tokens}) "
                f"exceeds the model's context of {limit} tokens"
            )
        loop = asyncio.get_running_loop()
        sequence = _Sequence(request, loop.create_future(), loop, np.random.default_rng(request.seed))
        with self._wake:
            if self._closing:
                raise ModelError("the policy is closed")
            self._waiting.append(sequence)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="sampler", daemon=True)
                self._thread.start()
            self._wake.notify_all()
        return await sequence.future

    async def publish(self, version: int, weights: WeightSource) -> dict[str, float]:  # noqa: ARG002
        """Sample from the changed weights under a new version.

        Without a copy the weights are shared with the trainer and nothing is sent. With one, sequences in
        progress continue with the new weights after the current token; their keys and values are recomputed.
        """
        if self._trained is None:
            self.set_version(version)
        else:
            await in_thread(partial(self._take_over, self._trained, version))
        return {}

    def set_version(self, version: int) -> None:
        """Record changed weights: stamp later tokens with ``version`` and drop all cached sequences."""
        with self._wake:
            self.version = version
            self._drop_caches = True

    @torch.no_grad()
    def _take_over(self, trained: LanguageModel, version: int) -> None:
        """Copy the trained weights between two steps of the sampler."""
        with self._wake:
            self._is_published = True
            self._wake.wait_for(lambda: not self._is_stepping)
            # Parameters that ``trained`` ties may be apart in the copy.
            sources = dict(trained.named_parameters(remove_duplicate=False))
            for name, target in self._model.named_parameters(remove_duplicate=False):
                target.copy_(sources[name])
            self.version, self._drop_caches, self._is_published = version, True, False
            self._wake.notify_all()

    async def close(self) -> None:
        """Stop the worker thread; waiting requests fail with ModelError."""
        with self._wake:
            self._closing = True
            thread, self._thread = self._thread, None
            self._wake.notify_all()
        if thread is not None:
            await asyncio.to_thread(thread.join)

    def _serve(self) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        while self._await_work():
            began = time.monotonic()
            try:
                self._admit()
                self._step()
            except Exception as error:  # a broken forward must reach every caller, not kill the thread
                for sequence in {*self._slots.clear(), *self._joining}:
                    sequence.fail(ModelError(f"sampling failed: {describe_error(error)}"))
                self._joining = []
            self._busy_seconds += time.monotonic() - began
            with self._wake:
                self._is_stepping = False
                self._wake.notify_all()
        for sequence in (*self._slots.clear(), *self._waiting):
            sequence.fail(ModelError("the policy was closed while sampling"))
        self._waiting.clear()

    def _await_work(self) -> bool:
        """Sleep until there is work; return False when closing."""
        with self._wake:
            if not self._closing and not self._waiting and not self._slots.active:
                self._wake.wait_for(lambda: self._closing or self._waiting)
                idle = True
            else:
                idle = False
        if idle and not self._closing:
            time.sleep(_GATHER_S)  # siblings' requests arrive together: one prefill serves them all
        with self._wake:
            self._wake.wait_for(lambda: self._closing or not self._is_published)
            self._is_stepping = not self._closing
            return self._is_stepping

    def _admit(self) -> None:
        """Assign rows to waiting requests and feed their prompts' new tokens (one batched forward)."""
        with self._wake:
            if self._drop_caches:
                self._slots.forget()
                self._drop_caches = False
            version = self.version
            while self._waiting and len(self._slots.active) + len(self._joining) < self._max_batch:
                sequence = self._waiting.popleft()
                if not sequence.future.cancelled():
                    self._joining.append(sequence)
        # Siblings' prompts are equal at first: all but one copy the keys and values of that one.
        first = {tuple(sequence.request.prompt_ids): sequence for sequence in self._joining}.values()
        others = [sequence for sequence in self._joining if sequence not in first]
        for fresh in (list(first), others):
            if fresh:
                for sequence in fresh:
                    self._slots.activate(sequence, sequence.request.prompt_ids)
                self._joining = [] if fresh is others else others
                self._advance(fresh, self._slots.feed_prompts(fresh), version)

    def _step(self) -> None:
        """Drop cancelled sequences, then sample one token for each active one."""
        for sequence in [s for s in self._slots.active if s.future.cancelled()]:
            self._slots.park(sequence)
        with self._wake:
            version = self.version
        if self._slots.active:
            active = list(self._slots.active)
            self._advance(active, self._slots.feed_last(), version)

    def _advance(self, sequences: list[_Sequence], logits: Tensor, version: int) -> None:
        params = [s.request.sampling for s in sequences]
        sampled = sample(logits, params, [s.random.random() for s in sequences])
        for sequence, token, logprob, entropy in zip(
            sequences, sampled.ids, sampled.logprobs, sampled.entropy, strict=True
        ):
            sequence.ids.append(token)
            sequence.logprobs.append(logprob)
            sequence.versions.append(version)
            sequence.entropy.append(entropy)
            self._slots.append(sequence, token)
            stopped = token in sequence.request.stop_ids
            if stopped or len(sequence.ids) >= sequence.request.sampling.max_tokens:
                self._slots.park(sequence)
                sequence.resolve(stopped=stopped)


def _set_result(future: asyncio.Future[Generation], result: Generation) -> None:
    if not future.done():
        future.set_result(result)


def _set_exception(future: asyncio.Future[Generation], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
