"""Distributed checkpoints (DCP) of weights and optimizer: every rank writes and reads its own shards.

Tensors are written in place, without a copy of the state: nothing may change them meanwhile.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from engine.errors import CheckpointError
from engine.models.weights.shard_reader import ShardReader

Fingerprint = Mapping[str, str | int]
"""Size and SHA-256 of a file, as ``bytes`` and ``sha256``."""

# A single process is intended. Not ``catch_warnings``: threads would restore each other's filters.
warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)


def write_shards(
    folder: Path, state: Mapping[str, Any], group: dist.ProcessGroup | None = None
) -> dict[str, Fingerprint]:
    """Write this rank's part of a nested state and flush it to the disk.

    Args:
        folder: created; the same for all ranks.
        state: tensors, sharded ones as DTensor.
        group: all ranks, used by nothing else meanwhile; None: this process alone.

    Returns:
        Fingerprints of this rank's files, by their names in the folder.
    """
    save(dict(state), checkpoint_id=folder, process_group=group, no_dist=group is None)
    rank = 0 if group is None else group.rank()
    own = sorted(folder.glob(f"__{rank}_*"))
    if rank == 0:
        own.append(folder / ".metadata")  # written last, when all ranks are done
    return {path.name: fingerprint(path) for path in own}


def read_shards(folder: Path, state: dict[str, Any], group: dist.ProcessGroup | None = None) -> None:
    """Fill a nested state's tensors from the shards of any number of ranks.

    Raises:
        CheckpointError: unreadable, or of another model.
    """
    try:
        load(state, storage_reader=ShardReader(folder), process_group=group, no_dist=group is None)
    except (RuntimeError, ValueError, OSError, CheckpointException) as error:
        raise CheckpointError(f"cannot read the shards in {folder}: {error}") from error


def read_part(folder: Path, part: str) -> dict[str, Tensor]:
    """Return the whole tensors of a state's part by name, without the part's name. Raises CheckpointError."""
    state = {
        f"{part}.{name}": torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in stored_part(folder, part).items()
        if isinstance(entry, TensorStorageMetadata)
    }
    read_shards(folder, state)
    return {name.removeprefix(f"{part}."): tensor for name, tensor in state.items()}


def stored_part(folder: Path, part: str) -> dict[str, TensorStorageMetadata | BytesStorageMetadata]:
    """Return the metadata of a state's part by name, without the part's name. Raises CheckpointError."""
    stored = ShardReader(folder).read_metadata().state_dict_metadata
    prefix = f"{part}."
    return {name.removeprefix(prefix): entry for name, entry in stored.items() if name.startswith(prefix)}


def fingerprint(path: Path) -> Fingerprint:
    """Return the size and hash of a file."""
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
