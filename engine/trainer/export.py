"""Export of a run's policy as a folder for transformers, and of adapters as a folder for peft."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from engine.config.learning.trainer import TrainerConfig
from engine.errors import CheckpointError
from engine.models.frozen import is_frozen, verify_frozen
from engine.models.references import last_checkpoint
from engine.models.weights.adapted import base_folder
from engine.models.weights.checkpoint_folder import SHARDS
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
        CheckpointError: the source has nothing to export, or is damaged.
    """
    folder = _policy_folder(source)
    from engine.models.weights.export import export_folder  # transformers takes seconds to import

    export_folder(folder, out, dtype=DTYPES[dtype])
    return folder


def export_adapters(run_dir: Path, out: Path) -> Path:
    """Write a run's adapters in peft's format, over the base policy in the folder of the run or checkpoint.

    Args:
        run_dir: the run's folder; its last checkpoint is taken.
        out: created or replaced.

    Returns:
        The checkpoint that was exported.

    Raises:
        CheckpointError: the run has no checkpoint or no adapters, or ``out`` holds something else.
    """
    folder = _last_policy(run_dir)
    if not (folder / ADAPTERS).is_file():
        raise CheckpointError(f"{folder} has no adapters: trainer.lora_rank was 0")
    base, _ = base_folder(folder)
    adapters = read_part(folder / SHARDS, "adapters")
    from engine.models.adapters import save_adapters  # peft takes seconds to import

    settings = json.loads((folder / ADAPTERS).read_text())
    trained = TrainerConfig(lora_rank=settings["r"], lora_alpha=settings["lora_alpha"])
    with draft_folder(out) as draft:
        save_adapters(draft, adapters, trained, settings["target_modules"], str(base))
        provenance = read_provenance(folder) or {}
        write_json(draft / "provenance.json", {**provenance, "exported_from": str(folder)})
    return folder


def _policy_folder(source: Path) -> Path:
    if not (source / "checkpoints").is_dir():
        if (source / "manifest.json").exists():
            return read_checkpoint(source).path
        return source
    return _last_policy(source)


def _last_policy(run_dir: Path) -> Path:
    """Return a run's last checkpoint, verified; without a manifest it is a frozen policy."""
    last = last_checkpoint(run_dir)
    if is_frozen(last):
        verify_frozen(last)
        return last
    checkpoint = load_latest(run_dir)
    if checkpoint is None:
        raise CheckpointError(f"{run_dir} has no checkpoint yet")
    return checkpoint.path
