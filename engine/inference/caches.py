"""Choice of the cache for a model. To add one for another implementation: a case in ``open_cache``."""

from __future__ import annotations

from engine.models.base import LanguageModel
from engine.models.builtin.tiled_cache import TiledCache
from engine.models.builtin.transformer import Transformer
from engine.models.caches.base import Cache
from engine.models.caches.paged import PagedCache


def open_cache(model: LanguageModel, rows: int) -> Cache:
    """Return an empty cache for ``rows`` sequences of the model."""
    return TiledCache(model, rows) if isinstance(model, Transformer) else PagedCache(model, rows)
