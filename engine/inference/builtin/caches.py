"""Choice of the cache for a model. To add one for another implementation: a case in ``open_cache``."""

from __future__ import annotations

import torch

from engine.models.base import LanguageModel
from engine.models.builtin.tiled_cache import TiledCache
from engine.models.builtin.transformer import Transformer
from engine.models.caches.base import Cache
from engine.models.caches.paged import PagedCache


def open_cache(model: LanguageModel, rows: int, *, low: torch.dtype | None = None) -> Cache:
    """Return an empty cache for ``rows`` sequences of the model.

    Args:
        model: the model to sample.
        rows: maximum number of sequences.
        low: half precision of a published model's matrix products; None computes in the weights' own.
    """
    return TiledCache(model, rows) if isinstance(model, Transformer) else PagedCache(model, rows, low=low)
