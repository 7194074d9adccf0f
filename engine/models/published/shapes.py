"""Content of ``config.json`` of the models that recipes name, and a configuration's maximum context.

Dry runs and memory plans need no network.

To add a model: the settings of its ``config.json`` that differ from ``transformers``' defaults.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

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
    "Qwen/Qwen3-8B": {
        **_QWEN3,
        "model_type": "qwen3",
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 40_960,
        "rope_theta": 1_000_000,
        "tie_word_embeddings": False,
    },
    "Qwen/Qwen3-14B": {
        **_QWEN3,
        "model_type": "qwen3",
        "hidden_size": 5120,
        "intermediate_size": 17_408,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "max_position_embeddings": 40_960,
        "rope_theta": 1_000_000,
        "tie_word_embeddings": False,
    },
    "Qwen/Qwen3-32B": {
        **_QWEN3,
        "model_type": "qwen3",
        "hidden_size": 5120,
        "intermediate_size": 25_600,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "max_position_embeddings": 40_960,
        "rope_theta": 1_000_000,
        "tie_word_embeddings": False,
    },
    "meta-llama/Llama-3.1-8B-Instruct": {
        "model_type": "llama",
        "vocab_size": 128_256,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131_072,
        "rope_theta": 500_000,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "bos_token_id": 128_000,
        "eos_token_id": [128_001, 128_008, 128_009],
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
"""Settings by hub name."""


def max_context(settings: Mapping[str, Any]) -> int | None:
    """Return the maximum length of a sequence in tokens, including an extension by YaRN.

    Raises:
        OverflowError, ValueError: the extended length is not a number of tokens.
    """
    lengths = [settings.get("max_position_embeddings")]
    for rope in rotary_settings(settings):
        original, factor = rope.get("original_max_position_embeddings"), rope.get("factor")
        is_yarn = "yarn" in (rope.get("rope_type"), rope.get("type"))
        if is_yarn and _is_number(original) and _is_number(factor):
            lengths.append(int(original * factor))
    return max((length for length in lengths if type(length) is int), default=None)


def rotary_settings(settings: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the position encodings: those of all layers, or of each kind of layer."""
    for name in ("rope_parameters", "rope_scaling"):
        rope = settings.get(name)
        if isinstance(rope, dict):
            yield from (encoding for encoding in (rope, *rope.values()) if isinstance(encoding, dict))


def _is_number(value: object) -> TypeGuard[float]:
    return type(value) in (int, float)
