"""Reader of untrusted distributed checkpoints (DCP).

DCP stores a checkpoint's metadata as a pickle. Any policy folder may contain one, so only the plain record
classes of that metadata are unpickled.
"""

from __future__ import annotations

import dataclasses
import pickle
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata

from engine.errors import CheckpointError

_RECORDS = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")
_OTHERS = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("pathlib", "Path"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),
}


class ShardReader(FileSystemReader):
    """``FileSystemReader`` that runs no code of a checkpoint."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the metadata of the checkpoint.

        Raises:
            CheckpointError: it is missing or damaged, or has more than plain records.
        """
        try:
            with self.fs.create_stream(self._get_metadata_path(kwargs.get("rank")), "rb") as file:
                _Records(file).load()
            metadata = super().read_metadata(*args, **kwargs)
            self._check_files(metadata)
            return metadata
        except CheckpointError:
            raise
        except Exception as error:  # unpickling damaged bytes may raise anything
            raise CheckpointError(f"{self.path} has no readable checkpoint of ranks: {error!r}") from error

    def _check_files(self, metadata: Metadata) -> None:
        for info in (metadata.storage_data or {}).values():
            name = str(info.relative_path)
            if Path(name).name != name:
                raise CheckpointError(
                    f"the shards' .metadata in {self.path} names the file '{name}' outside of its folder; "
                    "it may be an attack: do not use this folder"
                )


class _Records(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return a record class. Raises CheckpointError for anything else."""
        if "." not in name:
            is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
            if is_dtype or (module, name) in _OTHERS:
                return super().find_class(module, name)
            if module in _RECORDS:
                kind = super().find_class(module, name)
                if isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, Enum)):
                    return kind
        raise CheckpointError(
            f"the shards' .metadata asks for {module}.{name}, which no checkpoint of weights needs; "
            "it may be an attack: do not use this folder"
        )
