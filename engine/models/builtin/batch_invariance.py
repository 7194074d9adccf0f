"""Choice of the tiles of cached forwards, with a test that results do not depend on the batch.

With fixed shapes, batch invariance requires that the matrix library gives equal rows equal results at every
position of a product. Which shapes ensure this differs between processors, so the fastest tiles that pass a
self-test on this machine are chosen, once for each model shape. If none passes, sampling still works, but a
token's last bits depend on the batch, and a resumed run may differ in bits from an uninterrupted one.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from engine.models.builtin.cached_attention import TILE_KEYS, Tiles
from engine.models.builtin.kv_cache import KVCache
from engine.models.builtin.transformer import Block, Transformer
from engine.models.caches.base import Piece

ROWS = ((16, 256), (24, 48), (16, 16), (24, 24))
"""Candidates of ``Tiles.row_step`` and ``Tiles.max_rows``, the fastest first."""
QUERIES = (4, 16, 12, 1)
"""Candidates of ``Tiles.queries``, the fastest first."""
_ROWS = 5
"""Number of sequences of the self-test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Selected tiles."""

    tiles: Tiles
    is_invariant: bool
    """Whether the tiles passed the self-test; otherwise they are the fastest ones."""


_chosen: dict[tuple[str, torch.device, torch.dtype, int], Choice] = {}


def choose_tiles(model: Transformer) -> Choice:
    """Return the fastest tiles that pass the self-test for models of this shape on this machine.

    Call it in the sampling thread, because torch's number of threads is thread-local, and while the weights
    do not change. torch's random state stays unchanged.
    """
    weight = model.model.embed_tokens.weight
    shape = json.dumps([model.config.to_json(), sum(p.numel() for p in model.parameters())])
    key = shape, weight.device, weight.dtype, torch.get_num_threads()
    if key not in _chosen:
        _chosen[key] = _find_tiles(model)
    return _chosen[key]


@torch.no_grad()
def _find_tiles(model: Transformer) -> Choice:
    for row_step, max_rows in ROWS:
        if not _has_equal_rows(model, row_step, max_rows):
            continue
        for queries in QUERIES:
            tiles = Tiles(row_step=row_step, max_rows=max_rows, queries=queries)
            if _has_equal_contexts(model, tiles):
                return Choice(tiles=tiles, is_invariant=True)
    fastest = Tiles(row_step=ROWS[0][0], max_rows=ROWS[0][1], queries=QUERIES[0])
    return Choice(tiles=fastest, is_invariant=False)


def _products(model: Transformer) -> Iterator[tuple[Callable[[Tensor], Tensor], int]]:
    """Yield all row-wise operations of a forward, with the widths of their inputs."""
    block = model.model.layers[0]
    assert isinstance(block, Block)
    linear: list[nn.Linear] = [m for m in block.modules() if isinstance(m, nn.Linear)]  # adapters' too
    yield from ((module, module.in_features) for module in linear)
    yield functools.partial(block.mlp, invariant=True), model.config.hidden_size
    yield model.logits, model.config.hidden_size


def _has_equal_rows(model: Transformer, row_step: int, max_rows: int) -> bool:
    """Return whether a row gets the same bits at every position, with every number of rows that occurs."""
    weight = model.model.embed_tokens.weight
    for product, width in _products(model):
        row = torch.randn(1, width, generator=torch.Generator().manual_seed(width)).to(weight)
        expected = None
        for count in range(row_step, max_rows + 1, row_step):
            result = product(row.expand(count, width).contiguous())
            expected = result[:1] if expected is None else expected
            if not torch.equal(result, expected.expand_as(result)):
                return False
    return True


def _has_equal_contexts(model: Transformer, tiles: Tiles) -> bool:
    """Return whether a text gets the same bits for every split and in every batch."""
    generator = torch.Generator().manual_seed(0)
    length = TILE_KEYS + 2 * tiles.queries + 3
    texts = torch.randint(model.config.vocab_size, (_ROWS, length), generator=generator).tolist()
    weight = model.model.embed_tokens.weight
    cache = KVCache(model.config, _ROWS, device=weight.device, dtype=weight.dtype)
    whole = [Piece(row=row, start=0, ids=text) for row, text in enumerate(texts)]
    expected = torch.cat([model.extend([piece], cache, tiles) for piece in whole])
    if not torch.equal(model.extend(whole, cache, tiles), expected):
        return False
    for new in range(1, 2 * tiles.queries + 1):  # the last query takes every position of a tile
        for first, end in ((0, 1), (2, 3), (1, 4), (0, _ROWS)):
            pieces = [
                Piece(row=row, start=length - count, ids=texts[row][-count:])
                for row, count in zip(range(first, end), itertools.cycle((new, 1, 2)))
            ]
            if not torch.equal(model.extend(pieces, cache, tiles), expected[first:end]):
                return False
    return True
