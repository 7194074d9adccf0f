"""Writing of safetensors, split over files as published checkpoints are; one file is in memory at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from huggingface_hub import split_state_dict_into_shards_factory
from safetensors.torch import save_file
from torch import Tensor

from engine.models.weights.safetensors_folder import INDEX
from engine.models.weights.source import TensorInfo

MAX_FILE_BYTES = 4 << 30


def write_safetensors(
    folder: Path,
    infos: Mapping[str, TensorInfo],
    tensors: Iterable[tuple[str, Tensor]],
    *,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> None:
    """Write ``model.safetensors``, or several files and their index.

    Args:
        folder: exists.
        infos: descriptions of ``tensors``, in the same order.
        tensors: names and tensors; each is written in its own type.
        max_file_bytes: size of a file; a larger tensor has a file of its own.
    """
    split = split_state_dict_into_shards_factory(
        dict(infos),
        get_storage_size=lambda info: info.num_bytes,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=max_file_bytes,
    )
    waiting: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors:
        file = split.tensor_to_filename[name]
        shard = waiting.setdefault(file, {})
        shard[name] = tensor.cpu().contiguous()
        if len(shard) == len(split.filename_to_tensors[file]):
            save_file(waiting.pop(file), folder / file, metadata={"format": "pt"})
            (folder / file).chmod(0o644)  # safetensors creates it private
    assert not waiting, "fewer tensors than announced"
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
