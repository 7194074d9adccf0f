"""Cache of the built-in transformer, whose forwards have few fixed shapes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.models.builtin.batch_invariance import choose_tiles
from engine.models.builtin.kv_cache import KVCache
from engine.models.builtin.transformer import Transformer
from engine.models.caches.base import Piece


class TiledCache(KVCache):
    """``engine.models.caches.base.Cache`` of a ``Transformer``; feed it in one thread.

    Args:
        model: the model whose keys and values are stored.
        rows: maximum number of sequences.
    """

    def __init__(self, model: Transformer, rows: int) -> None:
        weight = model.model.embed_tokens.weight
        super().__init__(model.config, rows, device=weight.device, dtype=weight.dtype)
        self._model = model
        self.is_invariant: bool | None = None

    @torch.no_grad()
    def feed(self, pieces: Sequence[Piece]) -> Tensor:
        """Continue sequences by their next tokens; return logits [n, V]."""
        choice = choose_tiles(self._model)
        self.is_invariant = choice.is_invariant
        return self._model.extend(pieces, self, choice.tiles)

    def clear(self, row: int) -> None:
        """Do nothing: a row's memory is overwritten by its next sequence."""
