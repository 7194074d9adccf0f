"""The supervised loss of any language model, without the table of all logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.models.attention import Segments
from engine.models.base import LanguageModel
from engine.models.builtin.transformer import Transformer
from engine.models.logprobs import token_logprobs
from engine.models.precision import is_bfloat16_fast

_PADDED_STEP = 32
_PACKED_STEP = 128
"""Widths are multiples of these: a CPU's matrix kernels are compiled per shape."""


class Tokens(Protocol):
    """One conversation to learn from, as tokens."""

    @property
    def ids(self) -> Sequence[int] | NDArray[np.int32]:
        """Return the T token ids."""

    @property
    def mask(self) -> Sequence[int] | NDArray[np.bool_]:
        """Return a mask, 1 where a policy would sample the token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Conversations of two tokens or more: N tokens to predict, all but the first of each."""

    inputs: Tensor
    """int64 [N]: the token before each target."""
    targets: Tensor
    """int64 [N]."""
    sampled: Tensor
    """bool [N]: targets that a policy would sample."""
    lengths: tuple[int, ...]
    """Number of targets of each conversation."""


def make_batch(conversations: Sequence[Tokens], device: torch.device) -> Batch:
    """Concatenate conversations."""
    ids = [torch.from_numpy(np.asarray(tokens.ids, np.int64)) for tokens in conversations]
    masks = [torch.from_numpy(np.asarray(tokens.mask, np.bool_)) for tokens in conversations]
    return Batch(
        inputs=torch.cat([row[:-1] for row in ids]).to(device),
        targets=torch.cat([row[1:] for row in ids]).to(device),
        sampled=torch.cat([row[1:] for row in masks]).to(device),
        lengths=tuple(len(row) - 1 for row in ids),
    )


def token_losses(model: LanguageModel, batch: Batch) -> Tensor:
    """Return the cross-entropy of every target, float32 [N]; products in bfloat16 where that is fast."""
    device = batch.inputs.device.type
    low = device == "cuda" or is_bfloat16_fast()
    with torch.autocast(device, torch.bfloat16, enabled=low):
        hidden = _padded(model, batch) if isinstance(model, Transformer) else _packed(model, batch)
    hidden = hidden.bfloat16() if low else hidden
    return -token_logprobs(hidden, model.head, batch.targets, 1.0, entropy=False)[0]


def _padded(model: Transformer, batch: Batch) -> Tensor:
    """Return the hidden states [N, H] of a padded batch, in which a CPU computes a tiny model fastest."""
    lengths = torch.tensor(batch.lengths, device=batch.inputs.device)
    width = max(batch.lengths) + -max(batch.lengths) % _PADDED_STEP
    inside = torch.arange(width, device=lengths.device) < lengths.unsqueeze(1)
    rows = batch.inputs.new_zeros(inside.shape).masked_scatter_(inside, batch.inputs)
    return model.hidden(rows)[inside]


def _packed(model: LanguageModel, batch: Batch) -> Tensor:
    """Return the hidden states [N, H] of one packed row."""
    padding = -len(batch.inputs) % _PACKED_STEP
    ids = torch.cat((batch.inputs, batch.inputs.new_zeros(padding)))
    lengths = [*batch.lengths, padding] if padding else batch.lengths
    return model.packed_hidden(ids, Segments.whole(lengths, ids.device))[: len(batch.inputs)]
