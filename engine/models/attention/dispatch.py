"""Choice of the kernel: a fused one on CUDA in half precision, exact attention elsewhere."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from engine.models.attention.exact import attend_exact
from engine.models.attention.kernels import attend_fused
from engine.models.attention.segments import Scoring, Segments

_PLAIN = Scoring()


def attend(q: Tensor, k: Tensor, v: Tensor, segments: Segments, scoring: Scoring = _PLAIN) -> Tensor:
    """Return causal attention inside each sequence.

    Under context parallelism heads are scattered and the row's tokens gathered (Ulysses, Jacobs et al. 2023,
    arXiv:2309.14509); where the ranks cannot share the heads evenly, keys and values are gathered instead.

    Args:
        q: [T, heads, D].
        k: [T, kv_heads, D].
        v: as ``k``; D may differ.
        segments: layout of the row.
        scoring: conversion of products into weights.

    Returns:
        [T, heads, D of v].
    """
    device = q.device.type
    if torch.is_autocast_enabled(device):  # position encodings may have widened queries and keys
        low = torch.get_autocast_dtype(device)
        q, k, v = q.to(low), k.to(low), v.to(low)
    exchange = segments.exchange
    if exchange is None:
        return _attend_here(q, k, v, segments, scoring)
    if k.shape[1] % exchange.size:
        return _attend_here(q, exchange.gather(k), exchange.gather(v), segments, scoring)
    q, k, v = (exchange.scatter_heads(x) for x in (q, k, v))
    if scoring.sinks is not None:
        scoring = replace(scoring, sinks=scoring.sinks.chunk(exchange.size)[exchange.rank])
    return exchange.gather_heads(_attend_here(q, k, v, exchange.row, scoring))


def _attend_here(q: Tensor, k: Tensor, v: Tensor, segments: Segments, scoring: Scoring) -> Tensor:
    if q.is_cuda and q.dtype in (torch.bfloat16, torch.float16):
        return attend_fused(q, k, v, segments, scoring)
    return attend_exact(q, k, v, segments, scoring)
