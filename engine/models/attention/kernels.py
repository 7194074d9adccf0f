"""Fused attention on CUDA in half precision: one kernel for all pieces of a packed row.

Flash attention is preferred; it supports windows, but no sinks, no softcaps, and no values of another size
than keys. flex_attention computes everything else. Neither materialises the scores.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from engine.models.attention.segments import Ranges, Scoring, Segments, boundaries

_FLASH_MAX_SIZE = 256
"""Largest head size that flash attention supports."""


def attend_fused(q: Tensor, k: Tensor, v: Tensor, segments: Segments, scoring: Scoring) -> Tensor:
    """Return attention [T, heads, D of v]; ``k`` and ``v`` cover the whole row."""
    size = q.shape[-1]
    flash = scoring.softcap is None and scoring.sinks is None and size == v.shape[-1]
    if flash and size <= _FLASH_MAX_SIZE and size % 8 == 0:
        return _attend_flash(q, k, v, segments, scoring)
    return attend_flex(q, k, v, segments, scoring, _compiled_flex())


def _attend_flash(q: Tensor, k: Tensor, v: Tensor, segments: Segments, scoring: Scoring) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    key_lengths = segments.num_keys
    if segments.exchange is not None or key_lengths != segments.lengths:
        ranges = [torch.arange(*pair) for ranges in segments.keys for pair in ranges]
        chosen = torch.cat(ranges).to(q.device)
        k, v = k[chosen], v[chosen]
    query_ends, key_ends = (
        torch.tensor((0, *accumulate(lengths)), dtype=torch.int32, device=q.device)
        for lengths in (segments.lengths, key_lengths)
    )
    # Older versions of torch group heads without this argument.
    has_gqa = "enable_gqa" in inspect.signature(varlen_attn).parameters
    grouped: dict[str, Any] = {"enable_gqa": True} if has_gqa and q.shape[1] != k.shape[1] else {}
    left = -1 if scoring.window is None else scoring.window - 1
    # Like ours, its window is aligned at the end of the keys.
    out = varlen_attn(
        q, k, v, query_ends, key_ends, max(segments.lengths), max(key_lengths),
        scale=scoring.scale, window_size=(left, 0), **grouped,
    )  # fmt: skip
    assert isinstance(out, Tensor)
    return out


def attend_flex(
    q: Tensor, k: Tensor, v: Tensor, segments: Segments, scoring: Scoring, flex: Callable[..., Any]
) -> Tensor:
    """Return attention [T, heads, D of v] by ``flex``: torch's flex_attention, compiled or not."""
    from torch.nn.attention.flex_attention import AuxRequest

    mask = _block_mask(segments.lengths, segments.keys, scoring.window, len(k), q.device)
    out, aux = flex(
        *(x.transpose(0, 1).unsqueeze(0) for x in (q, k, v)),
        score_mod=None if scoring.softcap is None else _softcap(scoring.softcap),
        block_mask=mask,
        scale=scoring.scale,
        enable_gqa=q.shape[1] != k.shape[1],
        return_aux=AuxRequest(lse=True),
    )
    outputs: Tensor = out.squeeze(0).transpose(0, 1)
    if scoring.sinks is None:
        return outputs
    # A sink takes a share of the weights, but its value is zero.
    kept: Tensor = torch.sigmoid(aux.lse.squeeze(0).transpose(0, 1) - scoring.sinks)
    return (outputs * kept.unsqueeze(-1)).to(outputs.dtype)


@lru_cache(maxsize=1)
def _compiled_flex() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


@lru_cache(maxsize=8)
def _softcap(limit: float) -> Callable[..., Tensor]:
    def cap(score: Tensor, _batch: Tensor, _head: Tensor, _query: Tensor, _key: Tensor) -> Tensor:
        return limit * torch.tanh(score / limit)

    return cap


@lru_cache(maxsize=4)  # the layers of a row share a mask or two
def _block_mask(
    lengths: tuple[int, ...], keys: tuple[Ranges, ...], window: int | None, width: int, device: torch.device
) -> Any:
    """Return the block mask of a row with ``width`` keys."""
    from torch.nn.attention.flex_attention import create_block_mask

    bounds = torch.tensor(boundaries(keys, width))
    part = torch.repeat_interleave(torch.arange(len(bounds) - 1), bounds.diff()).to(device)
    position, seen = torch.zeros(width, dtype=torch.int64), torch.zeros(len(keys), len(bounds) - 1).bool()
    queries = []
    for number, (ranges, length) in enumerate(zip(keys, lengths, strict=True)):
        before = 0
        for start, end in ranges:
            position[start:end] = torch.arange(before, before + end - start)
            seen[number, (bounds[:-1] >= start) & (bounds[:-1] < end)] = True
            before += end - start
        queries.append(torch.arange(before - length, before))
    piece = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)).to(device)
    last, position, seen = torch.cat(queries).to(device), position.to(device), seen.to(device)

    def visible(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        is_visible = seen[piece[query], part[key]] & (position[key] <= last[query])
        return is_visible if window is None else is_visible & (position[key] > last[query] - window)

    return create_block_mask(visible, None, None, len(last), width, device, _compile=device.type == "cuda")
