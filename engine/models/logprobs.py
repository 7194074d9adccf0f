"""Log-probabilities and entropies of sampled tokens without storing all logits.

The table [N, V] of 32,000 positions and 152,000 tokens has 20 GB. Here it exists one chunk of positions at
a time, forwards and, computed again, backwards. With z = hidden · weightᵀ / T and p = softmax(z)

    log π(t) = z_t − log Σ exp z        ∂ log π(t) / ∂ z_j = [j = t] − p_j
    H        = − Σ p_j log p_j          ∂ H / ∂ z_j        = − p_j (log p_j + H)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_ELEMENTS = {"cpu": 2**21, "cuda": 2**26}
"""Number of logits computed at once: small enough for a CPU's cache, large enough to keep a GPU busy."""


def token_logprobs(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return each target's log-probability and its distribution's entropy, both [N] and differentiable.

    Args:
        hidden: [N, H], final hidden states; their dtype is the matrix products'.
        weight: [V, H], the output matrix.
        targets: int64 [N].
        temperature: logits are divided by it, > 0.

    Returns:
        In float32, or in float64 for float64 input; entropy in nats.
    """
    logprobs, entropies = _TokenLogprobs.apply(hidden, weight, targets, temperature)  # type: ignore[no-untyped-call]
    return logprobs, entropies


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        # Filled in place: small tensors between large freed ones would prevent the heap from reusing those.
        logprobs = hidden.new_empty(len(hidden), dtype=_wide(hidden.dtype))
        entropies = torch.empty_like(logprobs)
        with torch.autocast(hidden.device.type, enabled=False):
            for rows in _chunks(hidden, weight):
                table = _table(hidden[rows], weight, temperature)
                logprobs[rows] = table.gather(1, targets[rows].unsqueeze(1)).squeeze(1)
                entropies[rows] = -(table.exp() * table).sum(dim=1)
        ctx.save_for_backward(hidden, weight, targets, entropies)
        ctx.temperature = temperature
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        hidden, weight, targets, entropies = ctx.saved_tensors
        for_logprobs, for_entropies = gradients
        hidden_gradient = torch.zeros_like(hidden)
        weight_gradient = torch.zeros_like(weight, dtype=_wide(weight.dtype))
        for rows in _chunks(hidden, weight):
            table = _table(hidden[rows], weight, ctx.temperature)
            wanted = for_logprobs[rows].unsqueeze(1)
            surprise = for_entropies[rows].unsqueeze(1) * (table + entropies[rows].unsqueeze(1))
            change = table.exp_().mul_(-(wanted + surprise))
            change.scatter_add_(1, targets[rows].unsqueeze(1), wanted)
            change = change.div_(ctx.temperature).to(hidden.dtype)
            hidden_gradient[rows] = change @ weight.to(hidden.dtype)
            weight_gradient += change.T @ hidden[rows]
        return hidden_gradient, weight_gradient.to(weight.dtype), None, None


def _chunks(hidden: Tensor, weight: Tensor) -> list[slice]:
    size = max(16, _ELEMENTS.get(hidden.device.type, 2**26) // len(weight))
    return [slice(start, start + size) for start in range(0, len(hidden), size)]


def _table(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """Return the log-probabilities [n, V] of every token."""
    logits = (hidden @ weight.to(hidden.dtype).T).to(_wide(hidden.dtype))
    return torch.log_softmax(logits.div_(temperature), dim=1)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype == torch.float64 else torch.float32
