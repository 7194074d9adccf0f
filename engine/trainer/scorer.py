"""One forward pass over a packed row: log-probabilities and entropies of its sampled tokens.

The module that is sharded, because everything that touches a weight happens inside its ``forward``.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from engine.inference.transformer import Block, Transformer
from engine.trainer.batch import Microbatch
from engine.trainer.logprobs import token_logprobs
from engine.trainer.ranks import Ranks, place

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


class Scorer(nn.Module):
    """Scores tokens with a model.

    Args:
        model: its weights may be float32 in either precision.
        precision: of matrix products.
        ranks: sharded over all of them with FSDP2 when they are several.
        recompute: keep only the layers' inputs for the backward pass.
    """

    def __init__(
        self, model: Transformer, *, precision: Literal["f32", "bf16"], ranks: Ranks, recompute: bool = False
    ) -> None:
        super().__init__()
        self.model = model
        self._dtype = DTYPES[precision]
        self._ranks = ranks
        for layer in model.model.layers:
            assert isinstance(layer, Block)
            layer.recompute = recompute
        if ranks.mesh is not None:
            self._shard()

    def forward(self, batch: Microbatch, temperature: float) -> tuple[Tensor, Tensor]:
        """Log π at ``temperature`` and entropy in nats, both [N] and with gradient."""
        device = batch.ids.device.type
        with torch.autocast(device, self._dtype, enabled=self._dtype != torch.float32):
            hidden = self.model.packed_hidden(batch.ids, batch.segments)
        chosen = hidden[batch.columns].to(self._dtype)
        scores = token_logprobs(chosen, self.model.head, self._targets(batch), temperature)
        group = self._ranks.context_group()
        if group is None or batch.slots is None:
            return scores
        logprobs, entropies = (place(x, batch.slots, len(batch.targets), group) for x in scores)
        return logprobs, entropies

    @staticmethod
    def _targets(batch: Microbatch) -> Tensor:
        return batch.targets if batch.slots is None else batch.targets[batch.slots]

    def _shard(self) -> None:
        mesh = self._ranks.mesh
        assert mesh is not None
        flat = mesh._flatten("ranks")
        policy = MixedPrecisionPolicy(
            param_dtype=None if self._dtype == torch.float32 else self._dtype, reduce_dtype=torch.float32
        )
        for module in (*self.model.model.layers, self):
            fully_shard(module, mesh=flat, mp_policy=policy)
        for part in self.modules():
            if isinstance(part, FSDPModule):
                part.set_gradient_divide_factor(1.0)  # parts of one sum, not replicas of a mean
                part.set_force_sum_reduction_for_comms(True)  # gloo has no other
