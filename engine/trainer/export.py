"""Export of a run's policy as a folder for transformers, and of adapters as a folder for peft."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from engine.config.run import TrainRun, load_run_config
from engine.errors import CheckpointError, ConfigError
from engine.models.weights.adapted import BASE
from engine.models.weights.opening import SHARDS
from engine.models.weights.policy_files import ADAPTERS, draft_folder, read_provenance, write_json
from engine.trainer.checkpoints.checkpoint import load_latest, read_checkpoint
from engine.trainer.shards import read_part

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def export_policy(source: Path, out: Path, *, dtype: str = "float32") -> Path:
    """Write a folder that transformers opens: weights, configuration, tokenizer, chat template.

    Args:
        source: a run's folder (its last checkpoint is taken), one checkpoint, or any policy folder.
        out: created or replaced.
        dtype: type of the stored weights: float32, bfloat16 or float16.

    Returns:
        The folder that was exported.

    Raises:
        CheckpointError: nothing to export there, or damaged.
    """
    folder = _policy_folder(source)
    from engine.models.weights.export import export_folder  # transformers takes seconds to import

    export_folder(folder, out, dtype=DTYPES[dtype])
    return folder


def export_adapters(run_dir: Path, out: Path) -> Path:
    """Write a run's adapters in peft's format, over the base policy in the run's folder.

    Args:
        run_dir: the run's folder; its last checkpoint is taken.
        out: created or replaced.

    Returns:
        The checkpoint that was exported.

    Raises:
        CheckpointError: the run has no checkpoint or no adapters, or ``out`` holds something else.
    """
    checkpoint = load_latest(run_dir)
    if checkpoint is None:
        raise CheckpointError(f"{run_dir} has no checkpoint")
    try:
        config = load_run_config(run_dir / "config.json")
    except ConfigError as error:
        raise CheckpointError(f"{run_dir} is not a run: {error}") from error
    adapters = read_part(checkpoint.path / SHARDS, "adapters")
    if not adapters or not isinstance(config, TrainRun):
        raise CheckpointError(f"{checkpoint.path} has no adapters: trainer.lora_rank was 0")
    from engine.models.adapters import save_adapters  # peft takes seconds to import

    settings = json.loads((checkpoint.path / ADAPTERS).read_text())
    with draft_folder(out) as draft:
        save_adapters(draft, adapters, config.trainer, settings["target_modules"], str(run_dir / BASE))
        provenance = read_provenance(checkpoint.path) or {}
        write_json(draft / "provenance.json", {**provenance, "exported_from": str(checkpoint.path)})
    return checkpoint.path


def _policy_folder(source: Path) -> Path:
    if not (source / "checkpoints").is_dir():
        if (source / "manifest.json").exists():
            return read_checkpoint(source).path
        return source
    checkpoint = load_latest(source)
    if checkpoint is None:
        raise CheckpointError(f"{source} has no checkpoint yet")
    return checkpoint.path
