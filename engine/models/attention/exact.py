"""Exact attention in any precision on any device: a piece of a packed row at a time, or pieces of one query
together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from engine.models.attention.segments import Scoring, Segments, SingleQueries, boundaries

_BLOCK = 1024
"""Number of queries per block where a mask or all scores are materialised."""


def attend_exact(q: Tensor, k: Tensor, v: Tensor, segments: Segments, scoring: Scoring) -> Tensor:
    """Return attention [T, heads, D of v]; ``k`` and ``v`` cover the whole row."""
    if segments.singles and not scoring.is_explicit:
        return torch.cat(list(_attend_singles(q, k, v, segments.singles, scoring)))
    pieces = zip(torch.split(q, list(segments.lengths)), _cut(k, segments), _cut(v, segments), strict=True)
    return torch.cat([_attend_piece(*piece, scoring) for piece in pieces])


def _cut(x: Tensor, segments: Segments) -> Iterator[Tensor]:
    """Yield the keys or values of each piece."""
    bounds = boundaries(segments.keys, len(x))
    # Split once: a gradient buffer for each part, not one of the whole row for each piece.
    parts = dict(zip(bounds, torch.split(x, [end - start for start, end in pairwise(bounds)]), strict=False))
    for ranges in segments.keys:
        chosen = [
            parts[bound]
            for start, end in ranges
            for bound in bounds[bisect_left(bounds, start) : bisect_left(bounds, end)]
        ]
        yield chosen[0] if len(chosen) == 1 else torch.cat(chosen)


def _attend_singles(
    q: Tensor, k: Tensor, v: Tensor, batches: Sequence[SingleQueries], scoring: Scoring
) -> Iterator[Tensor]:
    """Yield the attention [n, heads, D of v] of each batch.

    Heads that share a key head are treated as its queries: with one query for each head, a CPU's kernel takes
    five times as long in bfloat16.
    """
    first, start = 0, 0
    for batch in batches:
        number, width = len(batch.num_keys), batch.width
        last, end = first + number, start + number * width
        keys, values = (x[start:end].view(number, width, *x.shape[1:]).transpose(1, 2) for x in (k, v))
        grouped = q[first:last].view(number, keys.shape[1], -1, q.shape[-1])
        mask = _visible(batch, scoring.window, q.device)
        out = functional.scaled_dot_product_attention(
            grouped, keys, values, attn_mask=mask, scale=scoring.scale
        )
        yield out.reshape(number, q.shape[1], v.shape[-1])
        first, start = last, end


def _visible(batch: SingleQueries, window: int | None, device: torch.device) -> Tensor | None:
    """Return the mask of visible keys, bool [n, 1, 1, width]; None: all."""
    window = batch.width if window is None else window
    if batch.width <= window and min(batch.num_keys) == batch.width:
        return None
    ends = torch.tensor(batch.num_keys, device=device).unsqueeze(1)
    places = torch.arange(batch.width, device=device)
    return ((places < ends) & (places >= ends - window)).view(-1, 1, 1, batch.width)


def _attend_piece(q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
    """Return attention of the queries [m, heads, D] at the end of the keys [n, kv_heads, D]."""
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    queries, keys = q.shape[1], k.shape[1]
    window = scoring.window if scoring.window is not None and scoring.window < keys else None
    if window is None and not scoring.is_explicit and queries == keys:
        return _attend_fused(q, k, v, None, scoring).transpose(0, 1)
    attend_block = _attend_explicitly if scoring.is_explicit else _attend_fused
    outputs = []
    for start, end, first, last in _blocks(queries, keys, window):
        mask = _mask(end - start, last - first, window, q.device)
        outputs.append(attend_block(q[:, start:end], k[:, first:last], v[:, first:last], mask, scoring))
    return torch.cat(outputs, dim=1).transpose(0, 1)


def _blocks(queries: int, keys: int, window: int | None) -> Iterator[tuple[int, int, int, int]]:
    """Yield start and end of each block of queries, and of its visible keys."""
    size = max(_BLOCK, window or 0)
    before = keys - queries
    for start in range(0, queries, size):
        end = min(start + size, queries)
        first = 0 if window is None else max(0, before + start - window + 1)
        yield start, end, first, before + end


def _mask(queries: int, keys: int, window: int | None, device: torch.device) -> Tensor | None:
    """Return the mask of visible keys, bool [queries, keys]; None: plain causal, equal numbers."""
    if queries == keys and window is None:
        return None
    mask = torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
    return mask if window is None else mask.triu(keys - queries - window + 1)


def _attend_fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scoring: Scoring) -> Tensor:
    out = functional.scaled_dot_product_attention(
        q.unsqueeze(0),
        k.unsqueeze(0),
        v.unsqueeze(0),
        attn_mask=mask,
        is_causal=mask is None,
        scale=scoring.scale,
        enable_gqa=len(q) != len(k),
    )
    return out.squeeze(0)


def _attend_explicitly(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scoring: Scoring) -> Tensor:
    group = len(q) // len(k)
    k, v = (x.repeat_interleave(group, dim=0) for x in (k, v))
    scale = q.shape[-1] ** -0.5 if scoring.scale is None else scoring.scale
    scores = (q @ k.transpose(1, 2) * scale).to(torch.promote_types(q.dtype, torch.float32))
    if scoring.softcap is not None:
        scores = scoring.softcap * torch.tanh(scores / scoring.softcap)
    if mask is None:
        mask = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device).tril()
    scores = scores.masked_fill(~mask, -torch.inf)
    if scoring.sinks is not None:
        sinks = scoring.sinks.to(scores.dtype).view(-1, 1, 1).expand(-1, scores.shape[1], 1)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = scores.softmax(dim=-1)[..., : k.shape[1]]
    return weights.to(v.dtype) @ v
