"""The ``config.json`` of models that recipes name: dry runs and memory plans need no network.

To add a model: what its ``config.json`` says and ``transformers`` does not by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_QWEN3 = {
    "vocab_size": 151_936,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "dtype": "bfloat16",
    "bos_token_id": 151_643,
    "eos_token_id": 151_645,
}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "Qwen/Qwen3-0.6B": {
        **_QWEN3,
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "max_position_embeddings": 40_960,
        "rope_theta": 1_000_000,
        "tie_word_embeddings": True,
    },
    "Qwen/Qwen3-4B": {
        **_QWEN3,
        "model_type": "qwen3",
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 40_960,
        "rope_theta": 1_000_000,
        "tie_word_embeddings": True,
    },
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": {
        **_QWEN3,
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "intermediate_size": 5472,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "max_position_embeddings": 262_144,
        "rope_theta": 10_000_000,
        "tie_word_embeddings": False,
    },
}
"""Settings by name at the hub."""
