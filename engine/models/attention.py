"""Attention over packed rows: concatenated sequences, each attending causally to itself only.

A packed row has no padding. On CUDA in half precision one variable-length kernel attends to all of it;
elsewhere each piece is one call of ``scaled_dot_product_attention``. Both are exact. A rank of a
context-parallel group holds some pieces of a row and gets everybody's keys through ``exchange``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """Attention layout of the T tokens of a packed row; pieces are contiguous and cover the row in order."""

    positions: Tensor
    """int64 [T]: position of each token in its own sequence."""
    lengths: tuple[int, ...]
    """Number of queries of each piece."""
    keys: tuple[tuple[int, int], ...]
    """Start and end of each piece's keys; the last query of a piece attends to all of them, the one before
    it to all but one, and so on."""
    exchange: Callable[[Tensor], Tensor] | None = None
    """Own keys or values [T, heads, D] → those of the whole row, which ``keys`` index; None: T is all."""

    @classmethod
    def whole(cls, lengths: Sequence[int], device: torch.device) -> Segments:
        """Return the segments of complete sequences of these lengths."""
        ends = list(accumulate(lengths))
        positions = torch.cat([torch.arange(length) for length in lengths])
        return cls(
            positions=positions.to(device),
            lengths=tuple(lengths),
            keys=tuple((end - length, end) for length, end in zip(lengths, ends, strict=True)),
        )


def attend(q: Tensor, k: Tensor, v: Tensor, segments: Segments) -> Tensor:
    """Return causal attention inside each sequence.

    Args:
        q: [T, heads, D].
        k: [T, kv_heads, D].
        v: as ``k``.
        segments: layout of the row.

    Returns:
        [T, heads, D].
    """
    if segments.exchange is not None:
        k, v = segments.exchange(k), segments.exchange(v)
    if q.is_cuda and q.dtype in (torch.bfloat16, torch.float16):
        return _attend_at_once(q, k, v, segments)
    pieces = zip(torch.split(q, list(segments.lengths)), _cut(k, segments), _cut(v, segments), strict=True)
    return torch.cat([_attend_piece(*piece) for piece in pieces])


def _cut(x: Tensor, segments: Segments) -> Sequence[Tensor]:
    """Return the keys or values of each piece."""
    if segments.exchange is None:
        return torch.split(x, list(segments.lengths))  # one gradient buffer, not one for each piece
    return [x[start:end] for start, end in segments.keys]


def _attend_piece(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    queries, keys = len(q), len(k)
    mask = None
    if queries != keys:
        mask = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
    grouped = q.shape[1] != k.shape[1]
    out = functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped
    )
    return out.squeeze(0).transpose(0, 1)


def _attend_at_once(q: Tensor, k: Tensor, v: Tensor, segments: Segments) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    if segments.exchange is not None:
        chosen = torch.cat([torch.arange(start, end) for start, end in segments.keys]).to(q.device)
        k, v = k[chosen], v[chosen]
    key_lengths = [end - start for start, end in segments.keys]
    query_ends, key_ends = (
        torch.tensor((0, *accumulate(lengths)), dtype=torch.int32, device=q.device)
        for lengths in (segments.lengths, key_lengths)
    )
    # Its causal window is aligned at the end of the keys, as ours is.
    out = varlen_attn(
        q, k, v, query_ends, key_ends, max(segments.lengths), max(key_lengths),
        window_size=(-1, 0), enable_gqa=q.shape[1] != k.shape[1],
    )  # fmt: skip
    assert isinstance(out, Tensor)
    return out
