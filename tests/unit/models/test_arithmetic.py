"""Counts of parameters and FLOPs compared with torch and published numbers; peaks of devices."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from engine.models.arithmetic import attended_pairs, pass_flops
from engine.models.attention import Segments
from engine.models.builtin.architectures import TransformerConfig
from engine.models.builtin.transformer import Transformer
from engine.models.devices import named_peak
from engine.models.sizes import ModelSizes, count_sizes

CONFIG = TransformerConfig(
    vocab_size=96,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    intermediate_size=48,
)
QWEN3_4B: dict[str, Any] = {
    "vocab_size": 151_936, "hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 9728, "tie_word_embeddings": True,
}  # fmt: skip
QWEN3_30B_A3B: dict[str, Any] = {
    "vocab_size": 151_936, "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "moe_intermediate_size": 768, "num_experts": 128,
    "num_experts_per_tok": 8, "tie_word_embeddings": False,
}  # fmt: skip
GPT_OSS_20B: dict[str, Any] = {
    "vocab_size": 201_088, "hidden_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2880, "num_local_experts": 32,
    "num_experts_per_tok": 4, "sliding_window": 128, "tie_word_embeddings": False,
}  # fmt: skip


def of_transformers(model_type: str, settings: dict[str, Any]) -> ModelSizes:
    """Return the sizes of a transformers model on the meta device."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **settings))  # type: ignore[no-untyped-call]
    head = SimpleNamespace(weight=model.get_output_embeddings().weight)
    network = SimpleNamespace(blocks=list(model.model.layers), head=head, parameters=model.parameters)
    return count_sizes(network)  # type: ignore[arg-type]


def counted_products(model: Transformer, lengths: Sequence[int], *, training: bool) -> float:
    """Return the FLOPs of a real pass, as counted by torch, without the products of attention."""
    ids = torch.randint(96, (sum(lengths),), generator=torch.Generator().manual_seed(0))
    with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(training):
        hidden = model.packed_hidden(ids, Segments.whole(lengths, ids.device))
        logits = model.logits(hidden[::2])
        if training:
            logits.sum().backward()  # type: ignore[no-untyped-call]
    counts = counter.get_flop_counts()["Global"]
    return float(sum(n for op, n in counts.items() if "attention" not in str(op) and "bmm" not in str(op)))


def expected_products(model: Transformer, lengths: Sequence[int], *, training: bool) -> float:
    """Return the FLOPs of the same pass by ``pass_flops``, without those of attention."""
    sizes, targets = count_sizes(model), -(-sum(lengths) // 2)
    pieces = [(n, n) for n in lengths]
    pairs = sum(attended_pairs(n, n, None) for n in lengths)
    attention = 2.0 * pairs * sum(block.attention for block in sizes.blocks)
    return pass_flops(sizes, pieces, targets, training=training).model - attention * (3 if training else 1)


@pytest.mark.parametrize("training", [False, True])
def test_pass_flops_equal_those_counted_by_torch(training: bool) -> None:
    model = Transformer(CONFIG)
    assert expected_products(model, (7, 12), training=training) == counted_products(
        model, (7, 12), training=training
    )


def test_frozen_weights_cost_no_weight_gradients() -> None:
    """Train the norms, since torch would skip unneeded gradients of the first layer's inputs."""
    model = Transformer(CONFIG).requires_grad_(False)
    first = model.blocks[0]
    for layer in model.blocks:
        layer.get_parameter("input_layernorm.weight").requires_grad_(True)
    expected = expected_products(model, (7, 12), training=True)
    assert expected == counted_products(model, (7, 12), training=True)
    assert count_sizes(model).blocks[0].trained == first.get_parameter("input_layernorm.weight").numel()


def test_recomputation_is_counted_separately() -> None:
    sizes = count_sizes(Transformer(CONFIG))
    plain = pass_flops(sizes, [(64, 64)], 10, training=True)
    checkpointed = pass_flops(sizes, [(64, 64)], 10, training=True, checkpointing=True)
    assert checkpointed.model == plain.model
    assert plain.recomputed == 0.0
    assert checkpointed.recomputed == pass_flops(sizes, [(64, 64)], 0, training=False).forward


@pytest.mark.parametrize(
    ("queries", "keys", "window"),
    [(1, 1, None), (6, 6, None), (4, 9, 1), (1, 30, 8), (12, 30, 3)],
)
def test_attended_pairs_equal_those_of_a_causal_mask(queries: int, keys: int, window: int | None) -> None:
    last = keys - queries
    keys_per_query = [min(last + i + 1, window or keys) for i in range(queries)]
    assert attended_pairs(queries, keys, window) == sum(keys_per_query)


def test_a_shared_prompt_is_counted_once() -> None:
    sizes = count_sizes(Transformer(CONFIG))
    separate = pass_flops(sizes, [(150, 150), (150, 150)], 100, training=True).model
    shared = pass_flops(sizes, [(100, 100), (50, 150), (50, 150)], 100, training=True).model
    prompt = pass_flops(sizes, [(100, 100)], 0, training=True).model
    assert separate - shared == pytest.approx(prompt)


@pytest.mark.parametrize(
    ("model_type", "settings", "billions", "active"),
    [
        ("qwen3", QWEN3_4B, 4.02, 4.02),
        ("qwen3_moe", QWEN3_30B_A3B, 30.5, 3.35),
        ("gpt_oss", GPT_OSS_20B, 20.9, 3.61),
    ],
)
def test_model_sizes_match_published_numbers(
    model_type: str, settings: dict[str, Any], billions: float, active: float
) -> None:
    sizes = of_transformers(model_type, settings)
    assert sizes.parameters / 1e9 == pytest.approx(billions, rel=0.005)
    if model_type == "gpt_oss":
        assert [block.window for block in sizes.blocks] == [128, None] * 12
    assert (sizes.active - (model_type == "gpt_oss") * 201_088 * 2880) / 1e9 == pytest.approx(
        active, rel=0.01
    )  # gpt-oss publishes its count without the embedding


@pytest.mark.parametrize(
    ("name", "half"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA GH200 480GB", 990e12),
        ("NVIDIA GH200 144G HBM3e", None),
        ("NVIDIA A100 80GB PCIe", 312e12),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", None),
        ("NVIDIA A10G", None),
        ("NVIDIA GeForce RTX 4090", 165e12),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("AMD Instinct MI300X", None),
    ],
)
def test_device_peaks_are_looked_up_by_full_name(name: str, half: float | None) -> None:
    assert named_peak(name, torch.bfloat16) == half
    assert (named_peak(name, torch.float32) is None) == (half is None)
