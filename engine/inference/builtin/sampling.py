"""Sampling of one token per row from logits: temperature, min-p, top-k, nucleus, inverse CDF.

The draw takes a uniform number per row from the request's own stream, so results do not depend on
the batch. To add a sampling rule: transform the log-probabilities before ``_pick`` so that the
recorded ones stay those of the distribution drawn from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.inference.base import SamplingParams


class SampledBatch(NamedTuple):
    """Sampled tokens, their log-probabilities and the entropies of their distributions in nats, per row."""

    ids: list[int]
    logprobs: list[float]
    entropy: list[float]


@torch.no_grad()
def sample(logits: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]) -> SampledBatch:
    """Sample each row of ``logits`` [N, V].

    Tokens are filtered in vLLM's order: min-p, top-k, nucleus.

    Args:
        logits: any float dtype; computed in float32, cumulated in float64.
        params: one per row; temperature 0 selects the most likely token and records its log-probability at
            temperature 1.
        uniforms: numbers in [0, 1), one per row.
    """
    temperatures = [p.temperature for p in params]
    scale = torch.tensor([t if t > 0 else 1.0 for t in temperatures], device=logits.device)
    logprobs = torch.log_softmax(logits.float() / scale.unsqueeze(1), dim=-1)
    if any(p.min_p > 0 for p in params):
        logprobs = _keep_min_p(logprobs, torch.tensor([p.min_p for p in params], device=logits.device))
    if any(0 < p.top_k < logits.shape[1] for p in params):
        logprobs = _keep_top_k(logprobs, [p.top_k for p in params])
    if any(p.top_p < 1 for p in params):
        logprobs = _keep_top_p(logprobs, torch.tensor([p.top_p for p in params], device=logits.device))
    probabilities = logprobs.exp()
    surprise = (probabilities * logprobs.clamp(min=-1e4)).double()
    entropy = -surprise.cumsum(-1)[:, -1].float()  # sum() may split a single row between threads
    greedy = torch.tensor([t == 0 for t in temperatures], device=logits.device)
    drawn = _pick(probabilities, torch.tensor(uniforms, dtype=torch.float64, device=logits.device))
    ids = torch.where(greedy, logprobs.argmax(-1), drawn)
    chosen = logprobs.gather(1, ids.unsqueeze(1)).squeeze(1)
    return SampledBatch(ids.tolist(), chosen.tolist(), entropy.tolist())


def _pick(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    cumulated = probabilities.double().cumsum(-1)
    target = uniforms.unsqueeze(1) * cumulated[:, -1:]
    return torch.searchsorted(cumulated, target, right=True).squeeze(1).clamp(max=probabilities.shape[1] - 1)


def _keep_min_p(logprobs: Tensor, min_ps: Tensor) -> Tensor:
    """Keep tokens with at least ``min_ps`` times the highest probability; renormalise."""
    least = logprobs.amax(-1, keepdim=True) + min_ps.log().unsqueeze(1)
    return torch.log_softmax(logprobs.masked_fill(logprobs < least, float("-inf")), dim=-1)


def _keep_top_k(logprobs: Tensor, top_ks: Sequence[int]) -> Tensor:
    """Keep each row's ``top_ks`` most likely tokens (0: all; ties: lower ids); renormalise."""
    width = logprobs.shape[1]
    counts = torch.tensor([k or width for k in top_ks], device=logprobs.device)
    order = logprobs.argsort(dim=-1, descending=True, stable=True)
    behind = torch.arange(width, device=logprobs.device) >= counts.unsqueeze(1)
    dropped = torch.zeros_like(logprobs, dtype=torch.bool).scatter(1, order, behind)
    return torch.log_softmax(logprobs.masked_fill(dropped, float("-inf")), dim=-1)


def _keep_top_p(logprobs: Tensor, top_ps: Tensor) -> Tensor:
    """Keep the fewest most likely tokens whose mass reaches ``top_ps``; renormalise."""
    ordered, order = logprobs.sort(dim=-1, descending=True)
    before = ordered.double().exp().cumsum(-1) - ordered.double().exp()
    dropped = torch.zeros_like(logprobs, dtype=torch.bool).scatter(1, order, before >= top_ps.unsqueeze(1))
    return torch.log_softmax(logprobs.masked_fill(dropped, float("-inf")), dim=-1)
