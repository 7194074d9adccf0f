"""Checkpoint folders: weights in any format, by the names of a model's parameters, and other files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from engine.errors import CheckpointError, describe_error
from engine.models.base import LanguageModel
from engine.models.builtin.transformer import Transformer
from engine.models.weights.adapted import AdaptedWeights, base_folder
from engine.models.weights.dcp_folder import DcpFolder
from engine.models.weights.model_weights import ModelWeights, expected_tensors, plan_as_stored, tied_names
from engine.models.weights.policy_files import ADAPTERS, carried_files, check_readable
from engine.models.weights.safetensors_folder import INDEX, SINGLE, SafetensorsFolder, read_index
from engine.models.weights.source import WeightSource
from engine.reading import read_json

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

SHARDS = "shards"
"""Folder in a run's checkpoint with distributed weights (DCP), under ``model.NAME``."""

_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
_MAX_LAYERS = 1_000
_UNPACKED = "mxfp4"
"""Supported quantisation; gpt-oss is published in no other form."""
_TIED = ("model.embed_tokens.weight", "lm_head.weight")
"""Published names of the tied embedding table of a built-in model."""


def open_weights(folder: Path, model: LanguageModel) -> WeightSource:
    """Open the weights of a model; everything is checked and nothing is read yet.

    Args:
        folder: of the checkpoint: published safetensors, or shards of a run's ranks.
        model: built from the folder's ``config.json``; may be on the meta device.

    Raises:
        CheckpointError: files or tensors are missing, damaged, unexpected, quantised, or of another shape.
    """
    if isinstance(model, Transformer):
        stored, expected = _stored(folder), expected_tensors(model)
        ties = [_TIED] if model.config.tie_word_embeddings else []
        return ModelWeights(stored, expected, plan_as_stored(stored, expected, ties), ties)
    from engine.models.weights.conversion import meta_network

    return open_network_weights(folder, meta_network(cast(Any, model.config)))


def open_network_weights(folder: Path, network: PreTrainedModel) -> WeightSource:
    """Open the weights of a model of ``transformers``, as ``open_weights``.

    Args:
        folder: of the checkpoint.
        network: of ``meta_network``.
    """
    from engine.models.weights.conversion import plan_converted

    check_quantisation(folder)
    stored, expected, ties = _stored(folder), expected_tensors(network), tied_names(network)
    plan = plan_as_stored(stored, expected, ties) if _is_own(stored) else plan_converted(stored, network)
    return ModelWeights(stored, expected, plan, ties)


def _stored(folder: Path) -> WeightSource:
    published = (folder / SINGLE).exists() or (folder / INDEX).exists()
    if (folder / ADAPTERS).is_file():
        base, scale = base_folder(folder)
        return AdaptedWeights(_stored(base), DcpFolder(folder / SHARDS, prefix="adapters."), scale=scale)
    if not published and (folder / SHARDS).is_dir():
        return DcpFolder(folder / SHARDS, prefix="model.")
    return SafetensorsFolder(folder)


def policy_files(folder: Path) -> list[Path]:
    """Return the files of a folder that a policy is opened from, without those of a base under adapters.

    Raises:
        CheckpointError: the index of its weights is damaged.
    """
    paths = [folder / "config.json", folder / "provenance.json", *carried_files(folder)]
    if (folder / ADAPTERS).is_file():
        paths += [folder / ADAPTERS, *(folder / SHARDS).glob("*")]
    elif (folder / SINGLE).exists():
        paths.append(folder / SINGLE)
    elif (folder / INDEX).exists():
        paths += [folder / INDEX, *(folder / name for name in set(read_index(folder / INDEX).values()))]
    else:
        paths += (folder / SHARDS).glob("*")
    return sorted(path for path in set(paths) if path.is_file())


def _is_own(stored: WeightSource) -> bool:
    """Return whether weights have the names of the model's parameters, not those of published files."""
    while isinstance(stored, AdaptedWeights):
        stored = stored.base
    return isinstance(stored, DcpFolder)


def check_quantisation(folder: Path) -> None:
    """Raise CheckpointError when a folder's ``config.json`` declares quantised weights."""
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
    if not folder.is_dir():
        raise CheckpointError(f"there is no model folder {folder}")
    try:
        config = read_json(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} is not a JSON object")
    for name in _LAYERS:
        if isinstance(layers := config.get(name), int) and layers > _MAX_LAYERS:
            raise CheckpointError(f"{path} has {name} {layers}; models of up to {_MAX_LAYERS} are opened")
    return config


def read_settings(folder: Path) -> PreTrainedConfig:
    """Return ``config.json`` parsed by ``transformers``; no code of the folder is run.

    Raises:
        CheckpointError: files are missing or damaged, or have impossible settings.
    """
    from transformers import AutoConfig

    check_readable(folder)
    try:
        settings: PreTrainedConfig = AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # damaged files and impossible settings make transformers raise anything
        raise CheckpointError(f"cannot read the model in {folder}: {describe_error(error)}") from error
    return settings
