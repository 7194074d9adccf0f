"""Probe of an architecture: a forward pass on meta tensors that records how its layers call attention.

Transformers' own eager attention reads windows from masks, ours from an argument: a model whose mask and
argument differ would be computed wrongly.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from engine.models.published.networks import build_causal, layers_of, trunk_of

PROBE = "trainyard_probe"
_KNOWN = {"dropout", "output_attentions", "position_ids", "s_aux", "scaling", "softcap", "use_cache"}
"""Arguments of attention that ours uses or may ignore, besides windows."""


@dataclass
class _Calls:
    layers: set[int] = field(default_factory=set)
    windows: list[tuple[int | None, int | None]] = field(default_factory=list)
    """For each call, the window of the mask and that of the argument."""
    unknown: set[str] = field(default_factory=set)
    """Names of arguments that our attention does not support."""


def probe(config: PreTrainedConfig) -> str | None:
    """Return the reason why a model of this configuration cannot compute packed rows; None if it can."""
    causal = build_causal(copy.deepcopy(config), dtype=torch.bfloat16, meta=True, functions=PROBE)
    output = causal.get_output_embeddings()  # type: ignore[no-untyped-call]
    if output.bias is not None:
        return "has a bias in its output layer"
    trunk = trunk_of(causal)
    for name, child in causal.named_children():
        if child is not trunk and child is not output and next(child.parameters(), None) is not None:
            return f"has '{name}' between its layers and its output"
    trunk.to("meta")
    calls = _Calls()
    ids = torch.zeros(1, 4, dtype=torch.int64, device="meta")
    mask = torch.ones_like(ids)
    try:
        trunk(input_ids=ids, attention_mask=mask, position_ids=ids, use_cache=False, segments=calls)
    except Exception as error:  # a foreign forward pass may raise anything
        return f"cannot run over packed rows ({type(error).__name__}: {str(error)[:200]})"
    num_without = len(layers_of(trunk)) - len(calls.layers)
    if num_without:
        return f"has {num_without} layers without attention, which packed rows need"
    if calls.unknown:
        return f"passes {', '.join(sorted(calls.unknown))} to its attention, which packed rows do not support"
    for masked, passed in calls.windows:
        if masked != passed:
            return f"masks attention to a window of {masked} tokens, but passes {passed} on"
    return None


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,  # noqa: ARG001
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    segments: _Calls,
    sliding_window: int | None = None,
    **arguments: Any,
) -> tuple[Tensor, None]:
    """Record the call, and return a result of the right shape."""
    segments.layers.add(id(module))
    masked = None if attention_mask is None else int(attention_mask)
    segments.windows.append((masked, sliding_window))
    segments.unknown |= {name for name, value in arguments.items() if value is not None} - _KNOWN
    return query.new_empty(1, query.shape[2], query.shape[1], value.shape[3]), None


def _mask(*_: Any, local_size: int | None = None, **__: Any) -> Tensor | None:
    """Return the mask's window instead of the mask."""
    return None if local_size is None else torch.tensor(local_size)


def _experts(_module: nn.Module, hidden: Tensor, _chosen: Tensor, _weights: Tensor) -> Tensor:
    """Return a result of the right shape."""
    return torch.empty_like(hidden)


AttentionInterface.register(PROBE, _attention)
AttentionMaskInterface.register(PROBE, _mask)
ALL_EXPERTS_FUNCTIONS.register(PROBE, _experts)
