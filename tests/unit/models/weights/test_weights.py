"""Loading and publishing of every family's weights, exact to the bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig

from engine.errors import CheckpointError
from engine.models.published.networks import build_causal
from engine.models.published.pretrained import PretrainedModel
from engine.models.sharding import load_weights
from engine.models.weights.checkpoint_folder import open_weights
from engine.models.weights.conversion import iterate_published, meta_network, published_tensors
from engine.models.weights.safetensors_folder import SafetensorsFolder
from engine.models.weights.source import TensorsInMemory, WeightSource, read_tensor
from engine.models.weights.writing import write_safetensors
from tests.unit.models import small
from tests.unit.models.tiny_families import FAMILIES, tiny_config

CPU = torch.device("cpu")


def publish(folder: Path, config: PreTrainedConfig, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Write a random model with transformers in many files and return its tensors."""
    causal = build_causal(config, dtype=dtype, seed=3)
    causal.save_pretrained(folder, max_shard_size="20KB")
    return causal.state_dict()


def empty(config: PreTrainedConfig) -> PretrainedModel:
    return PretrainedModel(build_causal(config, meta=True))


def published(source: WeightSource) -> dict[str, Tensor]:
    return {name: read_tensor(source, name) for name in source.tensors}


def assert_same(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert set(actual) == set(expected)
    for name, tensor in expected.items():
        assert actual[name].dtype == tensor.dtype
        assert torch.equal(actual[name], tensor), name


@pytest.mark.parametrize("family", FAMILIES)
def test_published_weights_are_loaded_and_republished_exactly(tmp_path: Path, family: str) -> None:
    config = tiny_config(family)
    own = publish(tmp_path, config)
    model = empty(config)
    source = open_weights(tmp_path, model)
    for name, tensor in own.items():
        assert torch.equal(torch.cat(list(source.rows(name, 1, 3))), tensor[1:3]), name
    load_weights(model, model, source, CPU)
    assert_same(dict(model.state_dict()), own)
    whole = AutoModelForCausalLM.from_pretrained(tmp_path)
    for name, buffer in whole.named_buffers():
        assert torch.equal(model.get_buffer(name), buffer), name
    network = meta_network(config)
    copy = tmp_path / "again"
    copy.mkdir()
    tensors = TensorsInMemory(dict(model.named_parameters()) | dict(persistent_buffers(model)))
    infos = published_tensors(tensors.tensors, network, torch.float32)
    write_safetensors(copy, infos, iterate_published(tensors, network, torch.float32), max_file_bytes=20_000)
    assert len(list(copy.glob("*.safetensors"))) > 1
    assert_same(published(SafetensorsFolder(copy)), published(SafetensorsFolder(tmp_path)))


def persistent_buffers(model: PretrainedModel) -> dict[str, Tensor]:
    names = set(dict(model.named_parameters(remove_duplicate=False)))
    return {name: tensor for name, tensor in model.state_dict().items() if name not in names}


def test_stored_weights_are_cast_to_the_dtype_of_the_model(tmp_path: Path) -> None:
    config = tiny_config("qwen3_moe")
    publish(tmp_path, config, torch.bfloat16)
    path = next(p for p in tmp_path.glob("*.safetensors") if "model.norm.weight" in load_file(p))
    mixed = load_file(path)
    mixed["model.norm.weight"] = torch.linspace(0.9, 1.1, len(mixed["model.norm.weight"]))
    save_file(mixed, path, metadata={"format": "pt"})
    master, frozen = (
        PretrainedModel(build_causal(config, dtype=dtype, meta=True))
        for dtype in (torch.float32, torch.bfloat16)
    )
    for model in (master, frozen):
        load_weights(model, model, open_weights(tmp_path, model), CPU)
    assert {p.dtype for p in master.parameters()} == {torch.float32}
    assert torch.equal(master.get_parameter("model.norm.weight"), mixed["model.norm.weight"])
    assert {p.dtype for p in frozen.parameters()} == {torch.bfloat16}
    for name, parameter in frozen.named_parameters():
        assert torch.equal(parameter, master.get_parameter(name).bfloat16())


@pytest.mark.parametrize("kept", [("model.embed_tokens.weight", "lm_head.weight"), ("lm_head.weight",)])
def test_tied_weights_load_from_the_output_layer_or_both(tmp_path: Path, kept: tuple[str, ...]) -> None:
    config = tiny_config("qwen2")
    own = publish(tmp_path, config)
    weights = published(SafetensorsFolder(tmp_path))
    table = weights.pop("model.embed_tokens.weight")
    rewrite(tmp_path, weights | dict.fromkeys(kept, table.clone()))
    model = empty(config)
    load_weights(model, model, open_weights(tmp_path, model), CPU)
    assert model.get_parameter("lm_head.weight") is model.get_parameter("model.embed_tokens.weight")
    assert_same(dict(model.state_dict()), own)


@pytest.mark.parametrize("builtin", [True, False])
def test_tied_weights_that_differ_are_refused(tmp_path: Path, builtin: bool) -> None:
    config = tiny_config("qwen2")
    publish(tmp_path, config)
    weights = small.model().state_dict() if builtin else published(SafetensorsFolder(tmp_path))
    rewrite(tmp_path, weights | {"lm_head.weight": weights["model.embed_tokens.weight"] + 1e-3})
    with pytest.raises(
        CheckpointError, match=r"lm_head\.weight are one parameter, .* tie_word_embeddings to false"
    ):
        open_weights(tmp_path, small.model() if builtin else empty(config))


def rewrite(folder: Path, tensors: dict[str, Tensor]) -> None:
    for path in folder.glob("model*"):
        path.unlink()
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, folder / "model.safetensors")


def test_unused_tensors_of_published_checkpoints_are_ignored(tmp_path: Path) -> None:
    config = tiny_config("glm4_moe")
    own = publish(tmp_path, config)
    weights = published(SafetensorsFolder(tmp_path))
    weights["model.layers.46.eh_proj.weight"] = torch.zeros(2)  # GLM-4.5-Air's layer for speculative decoding
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(2)
    rewrite(tmp_path, weights)
    model = empty(config)
    load_weights(model, model, open_weights(tmp_path, model), CPU)
    assert_same(dict(model.state_dict()), own)


FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def unpacked(blocks: Tensor, scales: Tensor) -> Tensor:
    """Unpack MXFP4 one by one: [E, out, groups, 16] bytes, low half first, times 2^(scale − 127)."""
    experts, out, groups, _ = blocks.shape
    values = torch.empty(experts, groups * 32, out)
    for e in range(experts):
        for o in range(out):
            row = []
            for g in range(groups):
                for byte in blocks[e, o, g].tolist():
                    for bits in (byte & 15, byte >> 4):
                        row.append(
                            (-1) ** (bits >> 3) * FP4[bits & 7] * 2.0 ** (scales[e, o, g].item() - 127)
                        )
            values[e, :, o] = torch.tensor(row)
    return values.bfloat16()


def test_four_bit_gpt_oss_weights_are_unpacked_on_loading(tmp_path: Path) -> None:
    config = tiny_config("gpt_oss", hidden_size=32, intermediate_size=64, num_local_experts=3)
    own = publish(tmp_path, config, torch.bfloat16)
    weights, generator = published(SafetensorsFolder(tmp_path)), torch.Generator().manual_seed(5)
    for layer in range(2):
        for name, out, hidden in (("gate_up_proj", 128, 32), ("down_proj", 32, 64)):
            key = f"model.layers.{layer}.mlp.experts.{name}"
            shape = (3, out, hidden // 32)
            blocks = torch.randint(256, (*shape, 16), generator=generator, dtype=torch.uint8)
            scales = torch.randint(120, 130, shape, generator=generator, dtype=torch.uint8)
            del weights[key]
            weights |= {f"{key}_blocks": blocks, f"{key}_scales": scales}
            own[key] = unpacked(blocks, scales)
    rewrite(tmp_path, weights)
    settings = json.loads((tmp_path / "config.json").read_text())
    settings["quantization_config"] = {"quant_method": "mxfp4"}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    model = PretrainedModel(build_causal(config, dtype=torch.bfloat16, meta=True))
    load_weights(model, model, open_weights(tmp_path, model), CPU)
    assert_same(dict(model.state_dict()), own)
    source = open_weights(tmp_path, model)
    name = "model.layers.1.mlp.experts.gate_up_proj"
    assert torch.equal(torch.cat(list(source.rows(name, 1, 3))), own[name][1:3])


def without(*names: str) -> Callable[[dict[str, Tensor]], None]:
    def change(weights: dict[str, Tensor]) -> None:
        for name in names:
            del weights[name]

    return change


def with_(**tensors: Tensor) -> Callable[[dict[str, Tensor]], None]:
    return lambda weights: weights.update({key.replace("__", "."): value for key, value in tensors.items()})


EXPERT = "model.layers.1.mlp.experts.3"
FIFTH = "model.layers.1.mlp.experts.4"
NORM = "model.layers.0.input_layernorm.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without(NORM), f"lack 1 tensors of the model: {NORM}; download"),
        (without(f"{EXPERT}.up_proj.weight"), rf"lack 1 tensors of the model: {EXPERT}\.up_proj"),
        (without(*(f"model.layers.0.mlp.experts.{n}.down_proj.weight" for n in range(4))), "lack 4 tensors"),
        (
            with_(**{NORM: torch.ones(31)}),
            rf"{NORM} of .*model\.safetensors has shape \[31\]; the model of config\.json needs \[32\]",
        ),
        (
            with_(**{f"{EXPERT}.up_proj.weight": torch.ones(23, 32)}),
            rf"{EXPERT}\.up_proj\.weight of .* has shape \[23, 32\]; .* needs \[24, 32\]",
        ),
        (
            with_(**{f"{FIFTH}.{name}_proj.weight": torch.ones(24, 32) for name in ("up", "gate")}),
            r"experts.gate_up_proj give shape \[5, 48, 32\]; .* needs \[4, 48, 32\]",
        ),
        (with_(**{"vision.weight": torch.ones(1)}), r"no place for 1 stored tensors: vision\.weight \("),
        (with_(**{NORM: torch.ones(32, dtype=torch.int8)}), f"{NORM} of .* has type torch.int8; .*unquant"),
        (
            with_(**{f"{EXPERT}.up_proj.weight": torch.ones(24, 32).to(torch.float8_e4m3fn)}),
            rf"{EXPERT}\.up_proj\.weight of .* has type torch.float8_e4m3fn; .*unquantised",
        ),
    ],
)  # fmt: skip
def test_weights_that_do_not_match_the_model_are_refused(
    tmp_path: Path, change: Callable[[dict[str, Tensor]], None], message: str
) -> None:
    config = tiny_config("qwen3_moe")
    publish(tmp_path, config)
    weights = published(SafetensorsFolder(tmp_path))
    change(weights)
    rewrite(tmp_path, weights)
    with pytest.raises(CheckpointError, match=message):
        open_weights(tmp_path, empty(config))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"quantization_config": {"quant_method": "fp8"}}', "quantised with 'fp8'.*bfloat16"),
        ('{"quantization_config": {"bits": 4}}', "quantised with None"),
        ("[]", "not a JSON object"),
        ("{", "cannot read"),
    ],
)
def test_quantised_and_unreadable_configurations_are_refused(tmp_path: Path, text: str, message: str) -> None:
    config = tiny_config("qwen3")
    publish(tmp_path, config)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        open_weights(tmp_path, empty(config))


def test_builtin_model_loads_weights_from_the_same_folders(tmp_path: Path) -> None:
    model = small.model(seed=4)
    weights = dict(model.state_dict())
    (tmp_path / "config.json").write_text("{}")
    for redundant in ((), ("lm_head.weight",)):
        rewrite(tmp_path, weights | dict.fromkeys(redundant, weights["model.embed_tokens.weight"]))
        other = small.model(seed=5)
        load_weights(other, other, open_weights(tmp_path, other), CPU)
        assert_same(dict(other.state_dict()), weights)
    rewrite(tmp_path, weights | {"other.weight": torch.ones(1)})
    with pytest.raises(CheckpointError, match=r"no place for 1 stored tensors: other\.weight"):
        open_weights(tmp_path, other)
