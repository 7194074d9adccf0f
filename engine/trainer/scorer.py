"""One forward pass over a packed row: log-probabilities and entropies of its sampled tokens.

``Scorer`` is the module that is sharded, because every use of a weight happens inside its ``forward``.

In bf16, with any number of ranks, every weight is rounded where it is used and matrix products are
computed in bfloat16; the residual stream, norms, log-softmax and loss stay in float32. Gradients of weights
are rounded once for each microbatch and added up in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from engine.models.base import LanguageModel
from engine.models.logprobs import token_logprobs
from engine.models.precision import product_type
from engine.models.sharding import load_weights, shard
from engine.models.weights.source import WeightSource
from engine.trainer.batch import Microbatch
from engine.trainer.ranks import Ranks, scatter_values


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A model on the meta device, whose weights are read when it is sharded."""

    model: LanguageModel
    source: WeightSource
    device: torch.device


class Scorer(nn.Module):
    """Module that scores tokens with a model.

    Args:
        model: its weights do not change in either precision.
        precision: of matrix products; ``f32`` computes in the weights' own precision.
        ranks: with several ranks, the model is sharded over all of them with FSDP2.
        recompute: keep only the layers' inputs for the backward pass.
        offload: keep the shards in the host's memory; only with several ranks.
    """

    def __init__(
        self,
        model: LanguageModel | Unread,
        *,
        precision: Literal["f32", "bf16"],
        ranks: Ranks,
        recompute: bool = False,
        offload: bool = False,
    ) -> None:
        super().__init__()
        self.model = model.model if isinstance(model, Unread) else model
        self._low = product_type(precision)
        self._ranks = ranks
        self.model.set_activation_checkpointing(recompute)
        if ranks.mesh is not None:
            flat = ranks.mesh._flatten("ranks")
            shard(self, self.model.blocks, flat, compute=self._low, offload=offload)
        if isinstance(model, Unread):
            load_weights(self, self.model, model.source, model.device, offload=offload)

    def forward(
        self, batch: Microbatch, temperature: float, *, entropy: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """Return log π at ``temperature`` and, if wanted, entropy in nats, both [N] and differentiable."""
        device = batch.ids.device.type
        with torch.autocast(device, self._low, enabled=self._low is not None):
            hidden = self.model.packed_hidden(batch.ids, batch.segments)
        chosen = hidden[batch.columns]
        if self._low is not None:
            chosen = chosen.to(self._low)
        head, targets = self.model.head, self._targets(batch)
        logprobs, entropies = token_logprobs(chosen, head, targets, temperature, entropy=entropy)
        group = self._ranks.context_group()
        if group is not None and batch.slots is not None:
            logprobs = scatter_values(logprobs, batch.slots, len(batch.targets), group)
            if entropies is not None:
                entropies = scatter_values(entropies, batch.slots, len(batch.targets), group)
        return logprobs, entropies

    def reshard(self) -> None:
        """Shard every parameter again; a forward without a backward leaves them gathered."""
        for part in self.modules():
            if isinstance(part, FSDPModule):
                part.reshard()

    @staticmethod
    def _targets(batch: Microbatch) -> Tensor:
        return batch.targets if batch.slots is None else batch.targets[batch.slots]


class Base:
    """Scorer of the policy under another scorer's adapters, with the same weights."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer

    def __call__(
        self, batch: Microbatch, temperature: float, *, entropy: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """Score as ``Scorer.forward`` does, without the adapters."""
        from engine.models.adapters import disabled  # peft takes seconds to import

        with disabled(self._scorer.model):
            scores: tuple[Tensor, Tensor | None] = self._scorer(batch, temperature, entropy=entropy)
        return scores
