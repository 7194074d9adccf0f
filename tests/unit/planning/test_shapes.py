"""Computed model sizes and memory compared with networks on tensors without storage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.config.learning.trainer import TrainerConfig
from engine.errors import ConfigError
from engine.models.adapters import add_adapters
from engine.models.memory.estimate import estimate_memory
from engine.models.memory.plan import plan_memory
from engine.models.precision import weight_type
from engine.models.published.pretrained import build_pretrained
from engine.models.published.shapes import SHAPES
from engine.models.sizes import count_sizes
from engine.planning.shapes import activations, find_shape, model_sizes, parse_shape

FULL = TrainerConfig(precision="bf16")
ADAPTERS = TrainerConfig(precision="bf16", lora_rank=8)
BILLIONS = {
    "Qwen/Qwen3-0.6B": 0.596,
    "Qwen/Qwen3-4B": 4.02,
    "Qwen/Qwen3-8B": 8.19,
    "Qwen/Qwen3-14B": 14.77,
    "Qwen/Qwen3-32B": 32.76,
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": 30.53,
    "meta-llama/Llama-3.1-8B-Instruct": 8.03,
}
"""Parameters by the model cards, in billions."""
TINY = {
    "hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 4,
    "head_dim": 32, "vocab_size": 4000, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "dense": {**SHAPES["Qwen/Qwen3-8B"], **TINY, "intermediate_size": 704},
    "experts": {
        **SHAPES["Qwen/Qwen3-Coder-30B-A3B-Instruct"], **TINY, "moe_intermediate_size": 96, "num_experts": 16,
    },
    "llama": {**SHAPES["meta-llama/Llama-3.1-8B-Instruct"], **TINY, "intermediate_size": 704},
}  # fmt: skip
"""Small models of every family."""


@pytest.mark.parametrize(
    "name", ["Qwen/Qwen3-32B", "Qwen/Qwen3-Coder-30B-A3B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"]
)
@pytest.mark.parametrize("config", [FULL, ADAPTERS], ids=["full", "adapters"])
def test_computed_sizes_match_the_network(name: str, config: TrainerConfig, tmp_path: Path) -> None:
    few = {**SHAPES[name], "num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(few))
    model = build_pretrained(tmp_path, dtype=weight_type(config), random=False)
    if config.lora_rank:
        add_adapters(model, config, seed=0)
    assert model_sizes(parse_shape(few), config) == count_sizes(model)


def test_known_models_have_the_parameter_count_of_their_card() -> None:
    assert set(BILLIONS) == set(SHAPES)
    for name, billions in BILLIONS.items():
        assert model_sizes(find_shape(name), FULL).parameters == pytest.approx(billions * 1e9, rel=0.005)


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("dense", {"precision": "bf16", "activation_checkpointing": True, "data_parallel": 2}),
        ("dense", {}),
        ("experts", {"precision": "bf16", "data_parallel": 2, "lora_rank": 8}),
        ("experts", {"precision": "bf16"}),
        ("llama", {"precision": "bf16", "activation_checkpointing": True, "lora_rank": 8}),
        ("llama", {"lora_rank": 8}),
    ],
    ids=str,
)
def test_planned_memory_of_small_models_matches_the_estimate(
    model: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """The estimate runs the network on tensors without storage; the plan computes from its shape."""
    config = TrainerConfig(tokens_per_microbatch=8192, **settings)
    (tmp_path / "config.json").write_text(json.dumps(MODELS[model]))
    sizes, expected = estimate_memory(f"fresh:{tmp_path}", config, home=tmp_path, longest=8192)
    shape = parse_shape(MODELS[model])
    assert model_sizes(shape, config) == sizes
    planned = plan_memory(sizes, activations(shape, config), config, longest=8192)
    assert [part.name for part in planned.parts] == [part.name for part in expected.parts]
    for part, measured in zip(planned.parts, expected.parts, strict=True):
        assert part.bytes == pytest.approx(measured.bytes, rel=0.03, abs=2**20), part.name


def test_unknown_models_and_layers_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"no shape of 'OWNER/X'.*Qwen/Qwen3-32B"):
        find_shape("OWNER/X")
    with pytest.raises(ConfigError, match="model_type is 'mamba'; the planner knows llama, qwen3"):
        parse_shape({"model_type": "mamba"})
    config = TrainerConfig(lora_rank=8, lora_targets=("w1",))
    with pytest.raises(ConfigError, match="'w1' names no linear layer of qwen3; there are q_proj"):
        model_sizes(find_shape("Qwen/Qwen3-4B"), config)
