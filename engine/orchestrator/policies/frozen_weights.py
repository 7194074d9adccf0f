"""Weights of a policy without a trainer, for engines that must prove that they serve them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from engine.inference.base import WeightConsumer, WeightStream
from engine.models.base import LanguageModel
from engine.models.weights.live import LiveWeights
from engine.threads import in_thread
from engine.trainer.batch import make_microbatch, plain_sample
from engine.trainer.ranks import ALONE
from engine.trainer.scorer import Scorer


class FrozenWeights:
    """``WeightSource`` of an opened model; computes on the CPU in float32.

    Args:
        model: its weights.
    """

    def __init__(self, model: LanguageModel) -> None:
        self._live = LiveWeights(model)
        self._scorer = Scorer(model, precision="f32", ranks=ALONE)

    async def send_weights(self, consumer: WeightConsumer) -> Any:
        """Pass every weight to ``consumer`` in a thread; return its result."""
        dtype = consumer.dtype
        stream = WeightStream(infos=self._live.infos(dtype), tensors=self._live.tensors(dtype))
        return await in_thread(lambda: consumer(stream))

    async def logprobs(self, ids: Sequence[int]) -> list[float]:
        """Return the log-probability of each token after the first, at temperature 1."""
        return await in_thread(lambda: self._score(ids))

    @torch.no_grad()
    def _score(self, ids: Sequence[int]) -> list[float]:
        batch = make_microbatch((plain_sample(ids),), torch.device("cpu"))
        logprobs: list[float] = self._scorer(batch, 1.0, entropy=False)[0].tolist()
        return logprobs
