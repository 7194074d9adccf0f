"""Attention of new tokens to the KV cache, computed in tiles of one fixed shape.

A library's matrix product may sum in another order when a dimension changes, and which dimensions matter
differs between processors. Here every product has the same shape for every batch: a tile has
``Tiles.queries`` queries of one sequence and ``TILE_KEYS`` keys that start at a multiple of ``TILE_KEYS``.
Tiles are combined from the first key to the last; a tile that a query does not see adds an exact zero. So a
token's result depends on the tokens before it alone, provided that a product gives equal rows equal results
at every position of a tile: ``engine.models.builtin.batch_invariance`` checks that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, groupby

import torch
from torch import Tensor
from torch.nn import functional

from engine.models.builtin.kv_cache import KVCache
from engine.models.caches.base import Piece

TILE_KEYS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """Shapes of the matrix products of a cached forward."""

    row_step: int
    """A forward's tokens are padded to a multiple of this."""
    max_rows: int
    """Maximum number of tokens of one forward, a multiple of ``row_step``."""
    queries: int
    """Number of queries of an attention tile."""


@dataclass(slots=True)
class _Blocks:
    """Attention tiles over the same rows of the cache; B of them, with Q queries each."""

    rows: slice
    """One row for every block, or one row that all blocks share."""
    tokens: Tensor
    """int64 [B, Q]: the chunk's token of each query; further queries repeat a block's last token."""
    mask: Tensor
    """[B, 1, group × Q, K] added to scores: 0 where a query sees a key, else −∞."""
    unseen: Tensor
    """[K / TILE_KEYS, B, 1, group × Q] added to log-sums: −∞ where a query sees no key of a tile, else 0."""


class CachedChunk:
    """Tokens of one cached forward and the cache positions they attend to.

    Args:
        pieces: pieces of consecutive rows of the cache, each row once.
        cache: grows as needed; ``attend`` writes to it.
        tiles: the shapes to compute in.
        group: query heads that share a key head.
    """

    def __init__(self, pieces: Sequence[Piece], cache: KVCache, tiles: Tiles, *, group: int) -> None:
        self._cache = cache
        self._device = cache.keys.device
        lengths = [len(piece.ids) for piece in pieces]
        count = sum(lengths)
        padding = [0] * (-count % tiles.row_step)
        self.ids = self._indices([i for piece in pieces for i in piece.ids] + padding)
        """int64 [T], padded to a multiple of ``row_step``."""
        positions = [p for piece in pieces for p in range(piece.start, piece.start + len(piece.ids))]
        self.positions = self._indices(positions + padding)
        """int64 [T]."""
        self._rows = self._indices([piece.row for piece in pieces for _ in piece.ids])
        cache.reserve(-(-(max(positions) + 1) // TILE_KEYS) * TILE_KEYS)
        spans = _spans(lengths, tiles.queries)
        self._blocks = [self._block(batch, tiles.queries, group) for batch in _batches(pieces, spans)]
        order = [
            number * tiles.queries + i for number, span in enumerate(chain(*spans)) for i in range(len(span))
        ]
        self._order = self._indices(order + padding)
        self.last = self._indices([end - 1 for end in accumulate(lengths)])
        """int64 [n]: the last token of each piece."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store the new tokens' keys and values and attend to their whole sequences.

        Args:
            layer: index of the layer.
            q: [T, heads, D].
            k: [T, kv_heads, D].
            v: as ``k``.

        Returns:
            [T, heads, D].
        """
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        count = len(self._rows)
        keys[self._rows, :, self.positions[:count]] = k[:count]
        values[self._rows, :, self.positions[:count]] = v[:count]
        outputs = [_attend_blocks(q, keys[b.rows], values[b.rows], b) for b in self._blocks]
        return torch.cat(outputs)[self._order]

    def _block(self, batch: Sequence[tuple[Piece, list[range]]], queries: int, group: int) -> _Blocks:
        spans = [span for _, own in batch for span in own]
        tokens = self._indices([[*span, *[span[-1]] * (queries - len(span))] for span in spans])
        ends = self.positions[tokens].repeat(1, group)[:, None, :]
        length = -(-(max(piece.start + len(piece.ids) for piece, _ in batch)) // TILE_KEYS) * TILE_KEYS
        keys = torch.arange(length, device=self._device)
        zero = torch.zeros((), device=self._device, dtype=self._cache.keys.dtype)
        starts = keys[::TILE_KEYS].view(-1, 1, 1, 1)
        return _Blocks(
            rows=slice(batch[0][0].row, batch[-1][0].row + 1),
            tokens=tokens,
            mask=torch.where(keys <= ends.unsqueeze(-1), zero, -torch.inf),
            unseen=torch.where(starts <= ends, zero, -torch.inf),
        )

    def _indices(self, values: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)


def _spans(lengths: Sequence[int], queries: int) -> list[list[range]]:
    """Return the tokens of each piece's blocks, counted over all pieces."""
    ends = accumulate(lengths)
    return [
        [range(start, min(start + queries, end)) for start in range(end - length, end, queries)]
        for length, end in zip(lengths, ends, strict=True)
    ]


def _batches(
    pieces: Sequence[Piece], spans: Sequence[list[range]]
) -> Iterator[list[tuple[Piece, list[range]]]]:
    """Yield neighbouring one-block pieces together, a longer piece alone: its blocks share its row."""
    for is_short, run in groupby(zip(pieces, spans, strict=True), key=lambda pair: len(pair[1]) == 1):
        members = list(run)
        yield from [members] if is_short else [[member] for member in members]


def _attend_blocks(q: Tensor, keys: Tensor, values: Tensor, blocks: _Blocks) -> Tensor:
    """Return the attention of the queries [T, heads, D] in ``blocks``, [B × Q, heads, D]."""
    (count, queries), kv_heads, size = blocks.tokens.shape, keys.shape[1], q.shape[2]
    # Queries that share a key head are further rows of the same tile.
    q = q[blocks.tokens].view(count, queries, kv_heads, -1, size).permute(0, 2, 3, 1, 4).flatten(2, 3)
    length = blocks.mask.shape[-1]
    keys, values = (x[:, :, :length].expand(count, -1, -1, -1) for x in (keys, values))
    if q.is_cuda:
        out = functional.scaled_dot_product_attention(q, keys, values, attn_mask=blocks.mask)
    else:
        out = _attend_tiles(q, keys, values, blocks)
    out = out.reshape(count, kv_heads, -1, queries, size)
    return out.permute(0, 3, 1, 2, 4).reshape(count * queries, -1, size)


def _attend_tiles(q: Tensor, keys: Tensor, values: Tensor, blocks: _Blocks) -> Tensor:
    outs: list[Tensor] = []
    log_sums: list[Tensor] = []
    for unseen, start in zip(blocks.unseen, range(0, keys.shape[2], TILE_KEYS), strict=True):
        tile = slice(start, start + TILE_KEYS)
        # The kernel behind scaled_dot_product_attention, which does not return the log-sums.
        out, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, keys[:, :, tile], values[:, :, tile], attn_mask=blocks.mask[..., tile]
        )
        outs.append(out)
        log_sums.append(log_sum + unseen)
    if len(outs) == 1:  # merging would multiply and divide by one
        return outs[0]
    highest = torch.stack(log_sums).amax(0)
    merged, total = torch.zeros_like(q, dtype=highest.dtype), torch.zeros_like(highest)
    for out, log_sum in zip(outs, log_sums, strict=True):
        weight = (log_sum - highest).exp()
        merged += weight.unsqueeze(-1) * out
        total += weight
    return (merged / total.unsqueeze(-1)).to(q.dtype)
