"""GGUF files of tiny models, written as llama.cpp's converter writes them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3_text": "gemma3"}
"""``model_type`` → llama.cpp's name."""
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 32.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
)
_SETTINGS: Mapping[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
    "bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
_OF_FAMILY: Mapping[str, Mapping[str, Any]] = {
    "qwen3": {"head_dim": 32},
    "gemma3_text": {
        "num_hidden_layers": 7, "sliding_window": 5, "query_pre_attn_scalar": 16, "head_dim": 16,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"],
    },
}  # fmt: skip


def tiny_model(family: str, **settings: Any) -> PreTrainedModel:
    """Return a model with random weights whose vocabulary is ``tokens``'."""
    merged = {**_SETTINGS, **_OF_FAMILY.get(family, {}), "tie_word_embeddings": True, **settings}
    vocabulary = gemma_tokens() if family == "gemma3_text" else tokens()
    config = AutoConfig.for_model(family, vocab_size=len(vocabulary), **merged)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager")  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for name, weights in model.named_parameters():  # norms and biases are not all ones and zeros
            if weights.dim() == 1:
                weights.add_(torch.linspace(-0.1, 0.1, len(weights)) * (1 + len(name) % 3))
    return model


def tokens() -> list[str]:
    """Return a byte-level vocabulary: control tokens, all bytes, two merges."""
    alphabet = sorted(gguf_bytes().values())
    return [*SPECIALS, *alphabet, "he", "12"]


def gemma_tokens() -> list[str]:
    """Return a vocabulary in SentencePiece's spelling: control tokens, bytes, pieces."""
    numbers = (f"<0x{byte:02X}>" for byte in range(256))
    return ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *numbers, "▁", *"he12", "he"]


def gguf_bytes() -> dict[int, str]:
    """Return the spelling of each byte in byte-level vocabularies."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    spelling: dict[int, str] = bytes_to_unicode()  # type: ignore[no-untyped-call]
    return spelling


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    *,
    types: Mapping[str, GGMLQuantizationType] | None = None,
    split: str = "qwen2",
    also: Sequence[tuple[str, np.ndarray]] = (),
) -> Path:
    """Write a model with a byte-level tokenizer.

    Args:
        path: of the file.
        model: of ``tiny_model``.
        types: types of tensors by their name in the file; the others are F32.
        split: name of the tokenizer's split of text.
        also: more tensors.
    """
    config = model.config
    architecture = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, architecture)
    _write_settings(writer, config)
    if architecture == "gemma3":
        _write_pieces(writer)
    else:
        _write_merges(writer, split)
    written = dict(_tensors(model, architecture))
    for name, content in (*written.items(), *also):
        kind = (types or {}).get(name, GGMLQuantizationType.F32)
        writer.add_tensor(name, gguf.quants.quantize(content, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_merges(writer: gguf.GGUFWriter, split: str) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(tokens())
    writer.add_token_types([3] * len(SPECIALS) + [1] * (len(tokens()) - len(SPECIALS)))
    writer.add_token_merges(["h e", "1 2"])
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_chat_template(TEMPLATE)


def _write_pieces(writer: gguf.GGUFWriter) -> None:
    pieces = gemma_tokens()
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(pieces)
    writer.add_token_scores([-float(index) for index in range(len(pieces))])
    writer.add_token_types([3, 3, 3, 2, 4, *([6] * 256), *([1] * (len(pieces) - 261))])
    writer.add_add_space_prefix(False)
    for add, number in (
        (writer.add_pad_token_id, 0), (writer.add_eos_token_id, 1), (writer.add_bos_token_id, 2),
        (writer.add_unk_token_id, 3),
    ):  # fmt: skip
        add(number)


def _write_settings(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_name("tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(getattr(config, "head_dim", config.hidden_size // config.num_attention_heads))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if rope.get("rope_type") in ("yarn", "linear"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope.get("original_max_position_embeddings", 0))
    if config.model_type == "gemma3_text":
        writer.add_sliding_window(config.sliding_window)


def _tensors(model: PreTrainedModel, architecture: str) -> list[tuple[str, np.ndarray]]:
    """Return the tensors by llama.cpp's names: pairs of rotated rows, norms of Gemma with 1 added."""
    config = model.config
    names = gguf.get_tensor_name_map(
        next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture),
        config.num_hidden_layers,
    )
    found = []
    for published, weights in model.state_dict().items():
        if published == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stem, _, suffix = published.rpartition(".")
        name = names.get_name(stem)
        assert name is not None, published
        content = weights.float().numpy()
        if architecture == "llama" and stem.endswith(("q_proj", "k_proj")):
            heads = config.num_attention_heads if stem.endswith("q_proj") else config.num_key_value_heads
            halves = content.reshape(heads, 2, -1, *content.shape[1:])
            content = halves.swapaxes(1, 2).reshape(content.shape)
        if architecture == "gemma3" and stem.endswith("norm"):
            content = content + 1
        found.append((f"{name}.{suffix}", np.ascontiguousarray(content, dtype=np.float32)))
    if config.rope_parameters.get("rope_type") == "llama3":
        found.append(("rope_freqs.weight", llama3_factors(config)))
    return found


def llama3_factors(config: Any) -> np.ndarray:
    """Return the divisors of the frequencies of Llama 3's positions, [head size / 2]."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = config.rope_parameters["rope_theta"] ** -(torch.arange(0, config.head_dim, 2) / config.head_dim)
    assert math.isclose(float((plain / scaled).min()), 1.0, rel_tol=1e-5)
    return np.asarray(plain / scaled, dtype=np.float32)
