"""Low-rank adapters (LoRA, Hu et al. 2021, arXiv:2106.09685) with peft's layers and files.

The base exists once, frozen in its own types and never changed: the trainer, the in-process sampler and the
reference of a KL term share it. The sampler computes with the adapters, the reference with them ``disabled``.
Adapters are never merged into the base and removed again, which would accumulate rounding errors.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import Linear as LoraLinear
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from engine.config.learning.trainer import ALL_LINEAR, TrainerConfig
from engine.errors import ConfigError
from engine.models.base import LanguageModel
from engine.models.families import family_of

WEIGHTS = "adapter_model.safetensors"
_NAME = "default"
_PREFIX = "base_model.model."


def add_adapters(model: LanguageModel, config: TrainerConfig, *, seed: int) -> None:
    """Freeze a model and add adapters to its linear layers; its outputs stay the same.

    Args:
        model: any unsharded model; on the meta device, ``reset_adapters`` must follow.
        config: rank, scale and targets.
        seed: seed of the adapters' initial values.

    Raises:
        ConfigError: a target names no linear layer of the model.
    """
    targets = {id(model.get_submodule(name)) for name in find_targets(model, config.lora_targets)}
    model.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        for block in model.blocks:  # given a whole model, peft rewrites targets by its type
            inside = [name for name, module in block.named_modules() if id(module) in targets]
            if inside:
                inject_adapter_in_model(_settings(config, inside), block, adapter_name=_NAME)
    for layer in _layers(model).values():
        layer.lora_A.float()  # peft creates them in the base's type
        layer.lora_B.float()
    reset_adapters(model, seed)


def find_targets(model: LanguageModel, targets: Sequence[str]) -> list[str]:
    """Return the full names of the linear layers that get adapters.

    Args:
        model: its layers are searched, not the embedding and the output layer.
        targets: last parts of names, ``all-linear``, or empty for the family's default.

    Raises:
        ConfigError: a name matches nothing.
    """
    inside = {id(module) for block in model.blocks for module in block.modules()}
    experts = _expert_names(model)
    linear = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and id(module) in inside and name.rpartition(".")[2] not in experts
    ]
    known = {name.rpartition(".")[2] for name in linear}
    if not known:
        raise ConfigError(
            f"{model.family} has no linear layers that take adapters: set trainer.lora_rank to 0"
        )
    if not targets:
        usual = known.intersection(family_of(model.family).lora_targets)
        return [name for name in linear if not usual or name.rpartition(".")[2] in usual]
    if ALL_LINEAR in targets:
        return linear
    for target in targets:
        if not any(f".{name}".endswith(f".{target}") for name in linear):
            raise ConfigError(_unknown(model, target, known))
    return [name for name in linear if any(f".{name}".endswith(f".{target}") for target in targets)]


def reset_adapters(model: LanguageModel, seed: int) -> None:
    """Set the adapters to initial values that depend on the seed alone: A uniform as in peft, B zero."""
    for name, layer in _layers(model).items():
        for kind, weight in _pair(layer):
            if weight.is_meta:
                continue
            whole = torch.zeros(weight.shape)
            if kind == "lora_A":
                digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
                generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
                bound = 1 / math.sqrt(weight.shape[1])
                whole.uniform_(-bound, bound, generator=generator)
            _assign(weight, whole)


@contextlib.contextmanager
def disabled(model: LanguageModel) -> Iterator[None]:
    """Compute with the base alone, as for a reference policy."""
    layers = _layers(model).values()
    for layer in layers:
        layer._disable_adapters = True  # its public switch also changes requires_grad
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


def adapter_parameters(model: LanguageModel) -> dict[str, Tensor]:
    """Return the adapters, or this rank's shards of them, under peft's names without a wrapper's prefix."""
    return {
        f"{name}.{kind}.weight": weight
        for name, layer in _layers(model).items()
        for kind, weight in _pair(layer)
    }


def save_adapters(
    folder: Path, weights: Mapping[str, Tensor], config: TrainerConfig, targets: Sequence[str], base: str
) -> None:
    """Write a folder that peft and transformers load on top of the base policy.

    Args:
        folder: created.
        weights: whole adapters, under the names of ``adapter_parameters``.
        config: rank and scale they were trained with.
        targets: full or last parts of the names of the adapted layers.
        base: name or folder of the base policy.
    """
    save_settings(folder, config, targets, base)
    named = {f"{_PREFIX}{name}": tensor.cpu().contiguous() for name, tensor in weights.items()}
    save_file(named, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / WEIGHTS).chmod(0o644)  # safetensors creates it private


def adapter_tensors(model: LanguageModel) -> dict[str, Tensor]:
    """Return the adapters, or this rank's shards of them, under the names of peft's files."""
    return {f"{_PREFIX}{name}": weight.detach() for name, weight in adapter_parameters(model).items()}


def adapter_settings(model: LanguageModel, config: TrainerConfig) -> dict[str, Any]:
    """Return the content of ``adapter_config.json``, without the name of the base policy."""
    settings = _settings(config, target_names(model))
    settings.inference_mode = True
    content: dict[str, Any] = json.loads(json.dumps(settings.to_dict(), default=sorted))  # type: ignore[no-untyped-call]
    return content


def save_settings(folder: Path, config: TrainerConfig, targets: Sequence[str], base: str) -> None:
    """Write the ``adapter_config.json`` of ``save_adapters``."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = _settings(config, targets)
    settings.base_model_name_or_path = base
    settings.inference_mode = True
    settings.save_pretrained(str(folder))


def target_names(model: LanguageModel) -> list[str]:
    """Return the shortest names that describe the adapted layers, for ``save_adapters``.

    Last parts of names are used where they match no other layer.
    """
    layers = _layers(model)
    short = {name.rpartition(".")[2] for name in layers}
    adapted = {module for layer in layers.values() for module in layer.modules()}
    others = (n for n, m in model.named_modules() if isinstance(m, nn.Linear) and m not in adapted)
    if any(name.rpartition(".")[2] in short for name in others):
        return sorted(layers)
    return sorted(short)


def _settings(config: TrainerConfig, targets: Sequence[str]) -> LoraConfig:
    alpha = config.lora_alpha
    return LoraConfig(
        r=config.lora_rank,
        lora_alpha=int(alpha) if alpha == int(alpha) else alpha,  # type: ignore[arg-type]
        target_modules=list(targets),
        task_type="CAUSAL_LM",
    )


def _layers(model: nn.Module) -> dict[str, LoraLinear]:
    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLinear)}


def _pair(layer: LoraLinear) -> Iterator[tuple[str, Tensor]]:
    yield "lora_A", layer.get_parameter(f"lora_A.{_NAME}.weight")
    yield "lora_B", layer.get_parameter(f"lora_B.{_NAME}.weight")


@torch.no_grad()
def _assign(weight: Tensor, whole: Tensor) -> None:
    if isinstance(weight, DTensor):
        whole = whole.to(weight.device)
        shard = distribute_tensor(whole, weight.device_mesh, weight.placements, src_data_rank=None)
        weight.to_local().copy_(shard.to_local())
    else:
        weight.copy_(whole)


def _expert_names(model: LanguageModel) -> set[str]:
    """Return the names that peft treats as fused experts, even on dense layers."""
    fused = {name.rpartition(".")[2] for name, p in model.named_parameters() if p.dim() == 3}
    return fused | {"experts", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"} if fused else fused


def _unknown(model: LanguageModel, target: str, known: set[str]) -> str:
    if target.rpartition(".")[2] in _expert_names(model):
        return (
            f"trainer.lora_targets: '{target}' names the experts of {model.family}, which are one fused "
            f"parameter and take no adapters; use {', '.join(sorted(known))}"
        )
    return (
        f"trainer.lora_targets: '{target}' names no linear layer of {model.family}; "
        f"there are {', '.join(sorted(known))}, or '{ALL_LINEAR}'"
    )
