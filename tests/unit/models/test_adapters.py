"""Adapters of every family: targets, frozen base weights, and exports for peft and transformers."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from engine.config.learning.trainer import ALL_LINEAR, TrainerConfig
from engine.errors import CheckpointError, ConfigError
from engine.models.adapters import (
    adapter_parameters,
    add_adapters,
    disabled,
    find_targets,
    save_adapters,
    target_names,
)
from engine.models.attention import Segments
from engine.models.base import LanguageModel
from engine.models.loader import open_model
from engine.models.published.networks import build_causal
from engine.models.published.pretrained import PretrainedModel
from engine.models.sharding import load_weights
from engine.models.weights.adapted import AdaptedWeights
from engine.models.weights.checkpoint_folder import open_weights
from engine.models.weights.source import TensorsInMemory, WeightSource
from tests.unit.models.tiny_families import tiny_config, write_tiny

CONFIG = TrainerConfig(lora_rank=3, lora_alpha=6.0)
LENGTHS = (11, 8)
IDS = torch.randint(5, 300, (sum(LENGTHS),), generator=torch.Generator().manual_seed(0))
CPU = torch.device("cpu")
WITH_EXPERTS = ("gpt_oss", "glm4_moe")


def build(family: str, dtype: torch.dtype = torch.float32) -> LanguageModel:
    return PretrainedModel(build_causal(tiny_config(family), seed=1, dtype=dtype))


def hidden(model: LanguageModel) -> Tensor:
    with torch.no_grad():
        return model.packed_hidden(IDS, Segments.whole(LENGTHS, CPU))


def added(base: WeightSource, model: LanguageModel) -> AdaptedWeights:
    return AdaptedWeights(base, TensorsInMemory(adapter_parameters(model)), scale=2.0)


def perturb(model: LanguageModel) -> None:
    """Fill the adapters with random values, as after training."""
    generator = torch.Generator().manual_seed(7)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.normal_(std=0.2, generator=generator)


def logits_of_transformers(model: torch.nn.Module) -> Tensor:
    parts = torch.split(IDS, list(LENGTHS))
    with torch.no_grad():
        return torch.cat([model(ids[None]).logits[0] for ids in parts])


def logits(model: LanguageModel) -> Tensor:
    head = model.head
    products = hidden(model) @ head.weight.detach().T * head.scale
    return products if head.softcap is None else head.softcap * torch.tanh(products / head.softcap)


@pytest.mark.parametrize("family", ["qwen2", "gpt_oss", "gemma3_text", "glm4_moe"])
def test_exported_adapters_in_peft_and_merged_weights_have_the_same_logits(
    family: str, tmp_path: Path
) -> None:
    # float64, since processors round differently; grouped products of experts allow float32 at most.
    dtype = torch.float32 if family in WITH_EXPERTS else torch.float64
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    folder = write_tiny(tmp_path / "base", family, seed=1)
    model = open_model(str(folder), home=tmp_path).model
    start = hidden(model)
    add_adapters(model, CONFIG, seed=5)
    assert torch.equal(hidden(model), start)
    perturb(model)
    ours = logits(model)
    with disabled(model):
        assert torch.equal(hidden(model), start)
    assert (logits(model) - ours).abs().max() == 0
    ours = logits(deepcopy(model).to(dtype))

    weights = {name: weight.detach() for name, weight in adapter_parameters(model).items()}
    save_adapters(tmp_path / "adapter", weights, CONFIG, target_names(model), str(folder))
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    adapted = PeftModel.from_pretrained(theirs, str(tmp_path / "adapter")).to(dtype)
    assert (logits_of_transformers(adapted) - ours).abs().max() <= 1e-5 * ours.abs().max()
    assert not any(
        "_orig_mod" in n or "base_layer" in n
        for n in load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    )

    merged = PretrainedModel(build_causal(tiny_config(family), seed=2))
    load_weights(merged, merged, added(open_weights(folder, merged), model), CPU)
    assert (logits(merged.to(dtype)) - ours).abs().max() <= 1e-5 * ours.abs().max()


def test_find_targets_by_default_by_all_linear_and_by_name() -> None:
    model = build("qwen3_moe")
    assert {name.rpartition(".")[2] for name in find_targets(model, ())} == {
        "q_proj", "k_proj", "v_proj", "o_proj",
    }  # fmt: skip
    assert find_targets(model, (ALL_LINEAR,)) == find_targets(model, ())  # the experts are one parameter
    mixed = find_targets(build("glm4_moe"), (ALL_LINEAR,))  # peft would match the experts by dense names
    assert {name.rpartition(".")[2] for name in mixed} == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert find_targets(model, ("1.self_attn.q_proj",)) == ["model.layers.1.self_attn.q_proj"]
    dense = {name.rpartition(".")[2] for name in find_targets(build("qwen3"), ())}
    assert dense == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("c_attn", "'c_attn' names no linear layer of qwen3_moe; there are k_proj, o_proj, q_proj, v_proj"),
        ("gate_up_proj", "'gate_up_proj' names the experts of qwen3_moe"),
        ("lm_head", "'lm_head' names no linear layer"),
    ],
)
def test_a_target_that_matches_nothing_is_an_error(target: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        add_adapters(build("qwen3_moe"), CONFIG.model_copy(update={"lora_targets": (target,)}), seed=0)


def test_training_adapters_preserves_the_base_weights_and_their_dtype() -> None:
    model, untouched = build("llama", torch.bfloat16), build("llama", torch.bfloat16)
    add_adapters(model, CONFIG, seed=0)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert {p.dtype for p in trained.values()} == {torch.float32}
    assert all(".lora_" in name for name in trained)
    optimizer = torch.optim.SGD(trained.values(), lr=0.1)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            model.packed_hidden(IDS, Segments.whole(LENGTHS, CPU)).square().sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    for name, parameter in untouched.named_parameters():
        owner, _, kind = name.rpartition(".")
        names = dict(model.named_parameters())
        frozen = names.get(name, names.get(f"{owner}.base_layer.{kind}"))
        assert frozen is not None
        assert torch.equal(frozen, parameter)
        assert frozen.dtype == torch.bfloat16
    source = added(TensorsInMemory(untouched.state_dict()), model)
    assert {piece.dtype for name in source.tensors for piece in source.rows(name)} == {torch.bfloat16}
    assert any(w.abs().max() > 0 for name, w in adapter_parameters(model).items() if "lora_B" in name)


def test_initial_adapter_values_depend_only_on_the_seed() -> None:
    first, second, third = build("qwen3"), build("qwen3"), build("qwen3")
    torch.manual_seed(1)
    add_adapters(first, CONFIG, seed=0)
    state = torch.get_rng_state()
    torch.rand(3)
    add_adapters(second, CONFIG, seed=0)
    add_adapters(third, CONFIG, seed=1)
    torch.manual_seed(1)
    assert torch.equal(state, torch.get_rng_state())  # the global random state is unchanged
    a, b, c = (adapter_parameters(model) for model in (first, second, third))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not any(torch.equal(a[name], c[name]) for name in a if "lora_A" in name)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        (
            {"intermediate_size": 24},
            r"mlp\.down_proj\.lora_A\.weight of shape \[3, \d+\] for .* one of shape \[",
        ),
        ({"num_hidden_layers": 1}, r"layers\.1\..*lora_A\.weight of shape .* no such weight"),
    ],
)
def test_adapters_of_another_model_are_refused(settings: dict[str, int], found: str) -> None:
    model = build("qwen3")
    add_adapters(model, CONFIG.model_copy(update={"lora_targets": ("q_proj", "down_proj")}), seed=0)
    other = build_causal(tiny_config("qwen3", **settings)).state_dict()
    with pytest.raises(CheckpointError, match=found):
        added(TensorsInMemory(other), model)
