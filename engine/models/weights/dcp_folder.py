"""Weights of a distributed checkpoint (DCP), written by a run's ranks in shards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from engine.errors import CheckpointError
from engine.models.weights.shard_reader import ShardReader
from engine.models.weights.source import TensorInfo


class DcpFolder:
    """``WeightSource`` of the tensors in a DCP folder.

    Args:
        folder: of the checkpoint, which may be untrusted.
        prefix: beginning of the keys of the weights, left out of their names, e.g. ``model.``.

    Raises:
        CheckpointError: there is no such checkpoint, or it has no weights under this prefix.
    """

    def __init__(self, folder: Path, *, prefix: str) -> None:
        self._folder, self._prefix = folder, prefix
        self._reader = ShardReader(folder)
        metadata = self._reader.read_metadata()
        self._reader.set_up_storage_reader(metadata, is_coordinator=True)
        self._stored = {
            key.removeprefix(prefix): entry
            for key, entry in metadata.state_dict_metadata.items()
            if key.startswith(prefix) and isinstance(entry, TensorStorageMetadata)
        }
        if not self._stored:
            raise CheckpointError(f"the ranks' checkpoint {folder} has no tensors under '{prefix}'")
        self.tensors = {
            name: TensorInfo(tuple(entry.size), entry.properties.dtype)
            for name, entry in self._stored.items()
        }

    def where(self, name: str) -> str:  # noqa: ARG002
        """Return the folder, for messages."""
        return str(self._folder)

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Tensor]:
        """Yield the rows in one piece."""
        info, entry = self.tensors[name], self._stored[name]
        shape = torch.Size(info.shape)
        offsets = torch.Size([0] * len(shape))
        if shape:
            shape = torch.Size([(shape[0] if stop is None else stop) - start, *shape[1:]])
            offsets = torch.Size([start, *offsets[1:]])
        out = torch.empty(shape, dtype=info.dtype)
        chunks = [ChunkStorageMetadata(offsets=offsets, sizes=shape)]
        items = create_read_items_for_chunk_list(self._prefix + name, entry, chunks)
        try:
            self._reader.read_data(LoadPlan(items), cast(LoadPlanner, _Into(out))).wait()
        except Exception as error:  # unpickling damaged bytes may raise anything
            raise CheckpointError(f"cannot read {name} from {self._folder}: {error!r}") from error
        yield out


class _Into:
    """DCP planner for reading only: maps stored pieces to parts of one tensor."""

    def __init__(self, out: Tensor) -> None:
        self._out = out

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        """Return the part that an item fills."""
        part = self._out
        for dim, (start, length) in enumerate(zip(read_item.dest_offsets, read_item.lengths, strict=True)):
            part = part.narrow(dim, start, length)
        return part

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        """Do nothing: the part is a view."""
