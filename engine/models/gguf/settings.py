"""``config.json`` of the model in a GGUF file, by llama.cpp's key names.

To support an architecture: a function in ``_SETTINGS``, and what its tensors need in ``tensors``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from engine.errors import CheckpointError
from engine.models.gguf.header import GgufHeader

_LLAMA3_LOW, _LLAMA3_HIGH, _LLAMA3_CONTEXT = 1.0, 4.0, 8192
"""Settings of the positions of Llama 3.1, 3.2 and 3.3; GGUF files have the factors that follow from them."""
_GEMMA_LOCAL_BASE, _GEMMA_PERIOD = 10_000.0, 6
_GEMMA_27B_LAYERS = 62


def read_model_settings(
    header: GgufHeader, *, tied: bool, rope_factors: Sequence[float] | None
) -> dict[str, Any]:
    """Return the content of a model's ``config.json``.

    Args:
        header: of the file.
        tied: the output layer is the embedding table.
        rope_factors: content of the tensor ``rope_freqs.weight``, by which the frequencies of positions are
            divided, [head size / 2]; None if the file has none.

    Raises:
        CheckpointError: another architecture, or a variant of one that is not read; the message names it.
    """
    settings = _SETTINGS.get(header.architecture)
    if settings is None:
        raise CheckpointError(
            f"{header.path} has a model of the architecture '{header.architecture}'; GGUF files are read of "
            f"{', '.join(_SETTINGS)}. Convert it to safetensors, or take the original model"
        )
    if header.get("expert_count"):
        raise CheckpointError(f"{header.path} has a mixture of experts, which is not read from GGUF files")
    ids = {
        f"{name}_token_id": header.metadata.get(f"tokenizer.ggml.{key}_token_id")
        for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
    }
    found = {**_common(header), **settings(header), **ids, "tie_word_embeddings": tied, "dtype": "float32"}
    if rope_factors is not None:
        found["rope_parameters"] |= _llama3(header, found, rope_factors)
    return found


def _common(header: GgufHeader) -> dict[str, Any]:
    heads = header.count("attention.head_count")
    hidden = header.count("embedding_length")
    return {
        "hidden_size": hidden,
        "intermediate_size": header.count("feed_forward_length"),
        "num_hidden_layers": header.count("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": header.count("attention.head_count_kv", heads),
        "head_dim": header.count("attention.key_length", hidden // heads),
        "rms_norm_eps": header.number("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": header.count("context_length"),
        "vocab_size": header.tensors["token_embd.weight"].shape[0],
    }


def _llama(header: GgufHeader) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "rope_parameters": _rope(header),
    }


def _qwen2(header: GgufHeader) -> dict[str, Any]:
    return {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "rope_parameters": _rope(header),
    }


def _qwen3(header: GgufHeader) -> dict[str, Any]:
    return {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "rope_parameters": _rope(header),
    }


def _gemma3(header: GgufHeader) -> dict[str, Any]:
    layers, heads = header.count("block_count"), header.count("attention.head_count")
    size = header.count("embedding_length") // heads
    return {
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        "sliding_window": header.count("attention.sliding_window"),
        "layer_types": [
            "sliding_attention" if (layer + 1) % _GEMMA_PERIOD else "full_attention"
            for layer in range(layers)
        ],
        # What transformers calls the scalar is the size of a head, but in the largest model.
        "query_pre_attn_scalar": size
        if layers == _GEMMA_27B_LAYERS
        else header.count("attention.key_length"),
        "rope_parameters": {
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": header.number("rope.freq_base_swa", _GEMMA_LOCAL_BASE),
            },
            "full_attention": _rope(header),
        },
    }


_SETTINGS: dict[str, Callable[[GgufHeader], dict[str, Any]]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma3": _gemma3,
}


def _rope(header: GgufHeader) -> dict[str, Any]:
    """Return the position encoding. Raises CheckpointError for one that is not read."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": header.number("rope.freq_base", 10_000.0)}
    kind = header.get("rope.scaling.type", "none")
    if kind == "none":
        return rope
    if kind not in ("linear", "yarn"):
        raise CheckpointError(f"{header.path} has positions scaled by '{kind}': linear and yarn are read")
    rope |= {"rope_type": kind, "factor": header.number("rope.scaling.factor")}
    if kind == "yarn":
        rope["original_max_position_embeddings"] = header.count("rope.scaling.original_context_length")
    return rope


def _llama3(header: GgufHeader, settings: dict[str, Any], factors: Sequence[float]) -> dict[str, Any]:
    """Return the position encoding of Llama 3 that has these factors. Raises CheckpointError if none has."""
    factor, theta = max(factors), settings["rope_parameters"]["rope_theta"]
    if not factor >= 1:
        raise CheckpointError(f"{header.path} scales positions unlike Llama 3: it cannot be read")
    for index, found in enumerate(factors):
        turns = _LLAMA3_CONTEXT / (2 * math.pi * theta ** (2 * index / settings["head_dim"]))
        smooth = min(max((turns - _LLAMA3_LOW) / (_LLAMA3_HIGH - _LLAMA3_LOW), 0.0), 1.0)
        if not math.isclose(found, 1 / ((1 - smooth) / factor + smooth), rel_tol=1e-3):
            raise CheckpointError(f"{header.path} scales positions unlike Llama 3: it cannot be read")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LLAMA3_LOW,
        "high_freq_factor": _LLAMA3_HIGH,
        "original_max_position_embeddings": _LLAMA3_CONTEXT,
    }
