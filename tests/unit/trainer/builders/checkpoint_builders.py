"""Builders and readers of checkpoints of small policies."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from engine.models.builtin.tokenizer import BpeTokenizer
from engine.models.builtin.transformer import Transformer
from engine.models.loader import OpenedModel, write_policy_files
from engine.trainer.checkpoints.checkpoint import Snapshot, take_snapshot
from engine.trainer.learner import Learner
from engine.trainer.shards import read_part


def snapshot_of(
    run_dir: Path,
    iteration: int,
    trainer: Learner,
    *,
    model: Transformer,
    tokenizer: BpeTokenizer,
    cursor: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Snapshot:
    opened = OpenedModel(model=model, tokenizer=tokenizer, folder=None, provenance={})
    files = partial(write_policy_files, opened=opened, provenance=provenance or {})
    return take_snapshot(run_dir, iteration, trainer=trainer, policy_files=files, cursor=cursor or {})


def stored_state(folder: Path) -> dict[str, torch.Tensor]:
    """Return all tensors of a checkpoint's shards, unsharded, by full name."""
    shards = folder / "shards"
    return {
        f"{part}.{name}": tensor
        for part in ("model", "optimizer", "adapters")
        for name, tensor in read_part(shards, part).items()
    }
