"""The weights of a checkpoint folder, whatever format they are in, by the names of a model's parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from engine.errors import CheckpointError
from engine.models.base import LanguageModel
from engine.models.builtin.transformer import Transformer
from engine.models.weights.model_weights import ModelWeights, expected_tensors, plan_as_stored, tied_names
from engine.models.weights.safetensors_folder import SafetensorsFolder
from engine.models.weights.source import WeightSource

_UNPACKED = "mxfp4"
"""The one quantisation that is read: gpt-oss is published in no other form."""


def open_weights(folder: Path, model: LanguageModel) -> WeightSource:
    """Open the published weights of a model; everything is checked and nothing is read yet.

    Args:
        folder: of the checkpoint.
        model: built from the folder's ``config.json``; may be on the meta device.

    Raises:
        CheckpointError: files or tensors are missing, damaged, unexpected, quantised, or of another shape.
    """
    check_quantisation(folder)
    stored = SafetensorsFolder(folder)
    if isinstance(model, Transformer):
        expected = expected_tensors(model)
        redundant = ("lm_head.weight",) if model.config.tie_word_embeddings else ()
        plan = plan_as_stored(stored, expected, redundant=redundant)
        return ModelWeights(stored, expected, plan, tied_names(model))
    from engine.models.weights.conversion import meta_network, plan_converted

    network = meta_network(cast(Any, model.config))
    return ModelWeights(
        stored, expected_tensors(network), plan_converted(stored, network), tied_names(network)
    )


def check_quantisation(folder: Path) -> None:
    """Raise CheckpointError when a folder's ``config.json`` says that its weights are quantised."""
    config = read_config(folder)
    settings = config.get("quantization_config") or {}
    method = settings.get("quant_method") if isinstance(settings, dict) else settings
    if settings and method != _UNPACKED:
        raise CheckpointError(
            f"the weights in {folder} are quantised with {method!r}, which cannot be trained: "
            "use the variant of the model in bfloat16"
        )


def read_config(folder: Path) -> dict[str, Any]:
    """Return the content of a folder's ``config.json``. Raises CheckpointError."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} is not a JSON object")
    return config
