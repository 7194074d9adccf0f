"""Sizes and memory plan of a model from its ``config.json`` alone, without its weights."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.config.learning.trainer import TrainerConfig
from engine.models.base import LanguageModel
from engine.models.builtin.architectures import ARCHITECTURES
from engine.models.builtin.transformer import Transformer
from engine.models.loader import is_builtin, open_model
from engine.models.memory.activations import measure_activations
from engine.models.memory.plan import Activations, MemoryPlan, plan_memory
from engine.models.precision import weight_type
from engine.models.references import find_model
from engine.models.sizes import ModelSizes, count_sizes
from engine.models.weights.policy_files import read_provenance


def estimate_memory(
    ref: str, config: TrainerConfig, *, home: Path, longest: int, reference: bool = False
) -> tuple[ModelSizes, MemoryPlan]:
    """Return the sizes of a policy as it would be trained, and the memory of an update on a GPU.

    Args:
        ref: reference of a policy, as in ``engine.models.loader``.
        config: settings of the update.
        home: the data folder, for ``run:<id>``.
        longest: maximum tokens of a sample.
        reference: a second model scores the KL term.

    Raises:
        CheckpointError: there is no such policy.
        ConfigError: the configured adapters need layers that the policy does not have.
    """
    model = _without_weights(ref, config, home)
    if config.lora_rank:
        from engine.models.adapters import add_adapters  # peft takes seconds to import

        add_adapters(model, config, seed=0)
    sizes = count_sizes(model)
    plan = plan_memory(sizes, _activations(model, config), config, longest=longest, reference=reference)
    return sizes, plan


def _without_weights(ref: str, config: TrainerConfig, home: Path) -> LanguageModel:
    reference = find_model(ref, home=home)
    if reference.architecture is not None:
        return Transformer(ARCHITECTURES[reference.architecture])
    assert reference.folder is not None
    if is_builtin(read_provenance(reference.folder)):
        return open_model(ref, home=home, read=False).model
    from engine.models.published.pretrained import build_pretrained  # transformers takes seconds to import

    return build_pretrained(reference.folder, dtype=weight_type(config), random=False)


def _activations(model: LanguageModel, config: TrainerConfig) -> Activations:
    """Measure in the types of the update; torch fakes experts in bfloat16 only: float32 counts double."""
    half, alone = config.precision == "bf16", config.data_parallel * config.context_parallel == 1
    if any(p.dim() == 3 for p in model.parameters()):
        measured, factor = measure_activations(model, weights=torch.bfloat16), 1 if half else 2
        return Activations(
            inputs=factor * measured.inputs,
            kept=factor * measured.kept,
            layer=factor * measured.layer,
            outside=factor * measured.outside,
        )
    if half and alone:
        return measure_activations(model, autocast=torch.bfloat16)
    return measure_activations(model, weights=torch.bfloat16 if half else torch.float32)
