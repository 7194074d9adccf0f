"""Tiny random models of each family, as folders that ``transformers`` reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoConfig, PreTrainedConfig

from engine.models.published.networks import build_causal

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
"""What each family's tiny configuration adds to the common sizes, by ``model_type``."""
FAMILIES = tuple(CONFIGS)

SPECIALS: Mapping[str, tuple[str, ...]] = {
    "qwen2": ("<|endoftext|>", "<|im_end|>", "<|im_start|>"),
    "qwen3": ("<|endoftext|>", "<|im_end|>", "<|im_start|>", "<tool_call>", "</tool_call>", "<think>",
              "</think>"),
    "qwen3_moe": ("<|endoftext|>", "<|im_end|>", "<|im_start|>", "<tool_call>", "</tool_call>"),
    "llama": (
        "<|finetune_right_pad_id|>", "<|eot_id|>", "<|begin_of_text|>", "<|end_of_text|>",
        "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|python_tag|>",
    ),
    "mistral": ("<pad>", "</s>", "<s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
                "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    "gpt_oss": ("<|endoftext|>", "<|return|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>",
                "<|constrain|>", "<|call|>"),
    "gemma3_text": ("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"),
    "glm4_moe": (
        "<|endoftext|>", "<|user|>", "[gMASK]", "<sop>", "<|assistant|>", "<|system|>", "<|observation|>",
        "<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
        "</arg_value>", "<tool_response>", "</tool_response>", "/nothink",
    ),
}  # fmt: skip
"""Special tokens of each family, in the order of their ids: padding, end of turn, others."""


def tiny_config(family: str, **settings: Any) -> PreTrainedConfig:
    """Return the family's tiny configuration."""
    return AutoConfig.for_model(family, **{**_SIZES, **CONFIGS[family], **settings})


def tiny_tokenizer(family: str) -> Tokenizer:
    """Return a tokenizer of bytes and the family's special tokens."""
    alphabet = [*SPECIALS[family], *sorted(ByteLevel.alphabet())]
    backend = Tokenizer(BPE(vocab={token: number for number, token in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = ByteLevelDecoder()
    backend.add_special_tokens(list(SPECIALS[family]))
    return backend


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
    from transformers import PreTrainedTokenizerFast

    causal = build_causal(tiny_config(family, **settings), dtype=dtype, seed=seed)
    causal.save_pretrained(folder, max_shard_size=max_shard_size)
    pad, end, *_ = SPECIALS[family]
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tiny_tokenizer(family), eos_token=end, pad_token=pad, chat_template=chat_template,
        clean_up_tokenization_spaces=False,
    )  # fmt: skip
    tokenizer.save_pretrained(folder)
    return folder
