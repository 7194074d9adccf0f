"""Attention and mixture-of-experts functions, registered in transformers' interfaces.

A model built with ``attn_implementation=PACKED`` builds no masks. It passes the ``segments=`` argument of its
forward pass on to each layer's attention.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, grouped_mm_experts_forward

from engine.models.attention import Scoring, Segments, attend

PACKED = "trainyard_packed"
"""Registered name of the functions used in training."""


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    segments: Segments,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend within the sequences of a packed row, without dropout.

    Args:
        module: the calling layer.
        query: [1, heads, T, D].
        key: [1, kv_heads, T, D].
        value: as ``key``; D may differ.
        attention_mask: None.
        segments: layout of the row.
        scaling: factor of the scores.
        sliding_window: number of most recent keys that a query sees.
        softcap: limit of the scores.
        s_aux: [heads], attention sinks.

    Returns:
        [1, T, heads, D], and no weights.
    """
    assert attention_mask is None, f"{type(module).__name__} masks attention by itself"
    q, k, v = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))
    if segments.store is not None:
        layer = module.layer_idx
        assert isinstance(layer, int)
        k, v = segments.store.exchange(layer, k, v)
    scoring = Scoring(scale=scaling, window=sliding_window, softcap=softcap, sinks=s_aux)
    return attend(q, k, v, segments, scoring).unsqueeze(0), None


def grouped_experts(experts: nn.Module, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """Compute a mixture of experts as one grouped product; differentiable, in autocast's precision.

    Args:
        experts: module with fused parameters, [experts, …].
        hidden: [T, H].
        chosen: [T, k], indices of experts.
        weights: [T, k].

    Returns:
        [T, H].
    """
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        rounded = _Rounded(experts, torch.get_autocast_dtype(device))
        return grouped_mm_experts_forward(rounded, hidden, chosen, weights)  # type: ignore[arg-type]
    return grouped_mm_experts_forward(experts, hidden, chosen, weights)


class _Rounded:
    """Proxy of a module with parameters in another precision; autocast skips grouped products."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        self._module = module
        self._dtype = dtype

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        return value.to(self._dtype) if isinstance(value, nn.Parameter) else value


AttentionInterface.register(PACKED, packed_attention)
ALL_EXPERTS_FUNCTIONS.register(PACKED, grouped_experts)
