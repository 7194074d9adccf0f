"""The supervised loss of any language model, over a packed row and without the table of all logits."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.models.attention.segments import Segments
from engine.models.base import LanguageModel
from engine.models.logprobs import token_logprobs

_WIDTH_STEP = 128


class Tokens(Protocol):
    """One conversation to learn from, as tokens."""

    @property
    def ids(self) -> Sequence[int] | NDArray[np.int32]:
        """Return the T token ids."""

    @property
    def mask(self) -> Sequence[int] | NDArray[np.bool_]:
        """Return a mask, 1 where a policy would sample the token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedBatch:
    """Conversations as one row: N tokens to predict, all but the first of each conversation."""

    ids: Tensor
    """int64 [T]: the model's input, N tokens and padding; T is a multiple of 128, because a CPU's matrix
    kernels are compiled per shape."""
    segments: Segments
    targets: Tensor
    """int64 [N]."""
    sampled: Tensor
    """bool [N]: targets that a policy would sample."""


def pack(batch: Sequence[Tokens], device: torch.device) -> PackedBatch:
    """Concatenate conversations of two tokens or more."""
    lengths = [len(tokens.ids) - 1 for tokens in batch]
    padding = -sum(lengths) % _WIDTH_STEP
    columns = [(np.asarray(tokens.ids, np.int64), np.asarray(tokens.mask, np.bool_)) for tokens in batch]
    inputs = [*(ids[:-1] for ids, _ in columns), np.zeros(padding, np.int64)]
    return PackedBatch(
        ids=torch.from_numpy(np.concatenate(inputs)).to(device),
        segments=Segments.whole([*lengths, padding] if padding else lengths, device),
        targets=torch.from_numpy(np.concatenate([ids[1:] for ids, _ in columns])).to(device),
        sampled=torch.from_numpy(np.concatenate([mask[1:] for _, mask in columns])).to(device),
    )


def token_losses(model: LanguageModel, batch: PackedBatch) -> Tensor:
    """Return the cross-entropy of every target, float32 [N]; products in bfloat16 where that is fast."""
    device = batch.ids.device.type
    low = device == "cuda" or _has_bfloat16()
    with torch.autocast(device, torch.bfloat16, enabled=low):
        hidden = model.packed_hidden(batch.ids, batch.segments)[: len(batch.targets)]
    hidden = hidden.bfloat16() if low else hidden
    return -token_logprobs(hidden, model.head, batch.targets, 1.0, entropy=False)[0]


@functools.cache
def _has_bfloat16() -> bool:
    """Return whether this CPU multiplies bfloat16 natively; emulation is three times slower than float32."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
