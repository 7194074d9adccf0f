"""Our attention under transformers' attention interface: every architecture calls it by the name ``PACKED``.

A model built with ``attn_implementation=PACKED`` builds no masks. It passes the ``segments=`` argument of its
forward pass on to each layer's attention.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface

from engine.models.attention import Scoring, Segments, attend

PACKED = "trainyard_packed"


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
    scoring = Scoring(scale=scaling, window=sliding_window, softcap=softcap, sinks=s_aux)
    return attend(q, k, v, segments, scoring).unsqueeze(0), None


AttentionInterface.register(PACKED, packed_attention)
