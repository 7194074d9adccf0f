"""Tiny random models of each family, as folders readable by ``transformers``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedConfig

from engine.models.published.networks import build_causal
from tests.unit.models.chat.chat_templates import chat_tokenizer

_SIZES = {
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {},
    "qwen3_moe": {**_EXPERTS, "num_experts": 4, "norm_topk_prob": True, "decoder_sparse_step": 1},
    "llama": {
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
        }
    },
    "mistral": {"sliding_window": 7},
    "gpt_oss": {
        "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 6,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 150_000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "truncate": False, "original_max_position_embeddings": 16,
        },
    },
    "gemma3_text": {
        "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"],
        "query_pre_attn_scalar": 8, "final_logit_softcapping": 30.0, "tie_word_embeddings": True,
    },
    "glm4_moe": {
        **_EXPERTS, "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
        "first_k_dense_replace": 1, "use_qk_norm": True, "attention_bias": True, "partial_rotary_factor": 0.5,
    },
}  # fmt: skip
"""Settings of each family's tiny configuration beyond the common sizes, by ``model_type``."""
FAMILIES = tuple(CONFIGS)


def tiny_config(family: str, **settings: Any) -> PreTrainedConfig:
    """Return the family's tiny configuration."""
    return AutoConfig.for_model(family, **{**_SIZES, **CONFIGS[family], **settings})


def write_tiny(
    folder: Path,
    family: str,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    chat_template: str | None = None,
    max_shard_size: str = "1GB",
    **settings: Any,
) -> Path:
    """Write a random model of a family with its tokenizer, as ``transformers`` publishes them.

    Args:
        folder: created.
        family: a key of ``CONFIGS``.
        seed: seed of the weights.
        dtype: of the weights.
        chat_template: of the tokenizer.
        max_shard_size: of a file of weights.
        settings: overrides of the configuration.
    """
    causal = build_causal(tiny_config(family, **settings), dtype=dtype, seed=seed)
    causal.save_pretrained(folder, max_shard_size=max_shard_size)
    chat_tokenizer(family, chat_template=chat_template).save_pretrained(folder)
    return folder
