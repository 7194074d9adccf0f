"""Construction of ``transformers``' networks, and access to their parts."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from engine.errors import CheckpointError
from engine.models.published.interface import PACKED


def build_causal(
    config: PreTrainedConfig,
    *,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    meta: bool = False,
    functions: str = PACKED,
) -> PreTrainedModel:
    """Return a causal language model with random weights.

    Args:
        config: of a causal language model.
        dtype: of the weights.
        seed: seed of the weights.
        meta: leave the parameters without storage; buffers are computed anyway.
        functions: name of its attention and experts (``engine.models.published.interface``).
    """
    storage = init_empty_weights(include_buffers=False) if meta else nullcontext()
    with torch.random.fork_rng(devices=[]), storage:
        torch.manual_seed(seed)
        causal: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config,
            dtype=dtype,
            attn_implementation=functions,
            experts_implementation=functions,
            trust_remote_code=False,
        )
    causal.tie_weights()  # ``init_empty_weights`` unties shared parameters
    return causal


def trunk_of(causal: PreTrainedModel) -> Any:
    """Return the network below the output layer."""
    return causal.get_submodule(causal.base_model_prefix)


def layers_of(trunk: Any) -> nn.ModuleList:
    """Return the layers of a trunk. Raises CheckpointError where they are not in one list."""
    for child in trunk.children():
        if isinstance(child, nn.ModuleList) and len(child) == trunk.config.num_hidden_layers:
            return child
    raise CheckpointError(
        f"models of family '{trunk.config.model_type}' cannot be trained here: their layers are not in one "
        "list"
    )
