"""Export of a policy as a folder that transformers and peft open.

The weights are copied from file to file, one parameter at a time, under the names and in the layout of the
published model.
"""

from __future__ import annotations

from pathlib import Path

import torch

from engine.models.weights.checkpoint_folder import open_network_weights, read_config, read_settings
from engine.models.weights.conversion import iterate_published, meta_network, published_tensors
from engine.models.weights.policy_files import (
    carry_files,
    draft_folder,
    read_provenance,
    write_config,
    write_json,
)
from engine.models.weights.writing import MAX_FILE_BYTES, write_safetensors


def export_folder(
    source: Path, out: Path, *, dtype: torch.dtype, max_file_bytes: int = MAX_FILE_BYTES
) -> None:
    """Write a policy folder's weights as safetensors, with the files that belong to them.

    Args:
        source: a checkpoint of a run, or any folder with weights that can be trained here.
        out: created or replaced.
        dtype: of the written weights; buffers keep their own.
        max_file_bytes: size at which the weights are split over files.

    Raises:
        CheckpointError: the folder is not complete, or damaged.
    """
    config = read_config(source)
    network = meta_network(read_settings(source))
    weights = open_network_weights(source, network)
    provenance = read_provenance(source) or {}
    with draft_folder(out) as draft:
        write_safetensors(
            draft,
            published_tensors(weights.tensors, network, dtype),
            iterate_published(weights, network, dtype),
            max_file_bytes=max_file_bytes,
        )
        write_config(config, draft, dtype)
        carry_files(source, draft)
        write_json(draft / "provenance.json", {**provenance, "exported_from": str(source)})
