"""Safetensors of a checkpoint folder, one file or several with an index, read without memory mapping.

Touched pages of a mapped file would count as the process's memory, and truncation by another process would
kill this one. The library checks each header; rows are read at the offsets in it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.errors import CheckpointError
from engine.models.weights.source import PIECE_BYTES, TensorInfo
from engine.reading import open_regular, parse_bounded, read_json

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_MAX_HEADER, _MAX_INDEX = 16 << 20, 64 << 20
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True, slots=True)
class _Place:
    path: Path
    offset: int
    """Of the first byte, from the start of the file."""


class SafetensorsFolder:
    """``WeightSource`` of the published tensors of a checkpoint folder.

    Args:
        folder: has ``model.safetensors``, or ``model.safetensors.index.json`` and the files it names.

    Raises:
        CheckpointError: a file is missing or damaged, the index and the files differ, or the weights are
            stored in another format.
    """

    def __init__(self, folder: Path) -> None:
        self.tensors: dict[str, TensorInfo] = {}
        self._places: dict[str, _Place] = {}
        if (folder / SINGLE).exists():
            self._add(folder / SINGLE, {})
        elif (folder / INDEX).exists():
            self._add_indexed(folder)
        else:
            raise _without_safetensors(folder)

    def where(self, name: str) -> str:
        """Return the file of a tensor, for messages."""
        return str(self._places[name].path)

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Tensor]:
        """Yield rows ``start`` … ``stop`` in consecutive pieces; a scalar is one piece."""
        info, place = self.tensors[name], self._places[name]
        row = math.prod(info.shape[1:]) * info.dtype.itemsize
        step = max(1, PIECE_BYTES // max(1, row))
        with FileIO(place.path) as file:
            if not info.shape:
                yield self._read(file, name, place.offset, ())
                return
            stop = info.shape[0] if stop is None else stop
            for first in range(start, stop, step):
                shape = (min(step, stop - first), *info.shape[1:])
                yield self._read(file, name, place.offset + first * row, shape)

    def _read(self, file: FileIO, name: str, offset: int, shape: tuple[int, ...]) -> Tensor:
        tensor = torch.empty(shape, dtype=self.tensors[name].dtype)
        view = memoryview(tensor.view(-1).view(torch.uint8).numpy().data)
        file.seek(offset)
        while len(view):
            count = file.readinto(view)
            if not count:
                raise CheckpointError(
                    f"{self.where(name)} became shorter while tensor {name} was read: copy it here again"
                )
            view = view[count:]
        return tensor

    def _add_indexed(self, folder: Path) -> None:
        placed = read_index(folder / INDEX)
        files = sorted(set(placed.values()))
        missing = [file for file in files if not (folder / file).exists()]
        if missing:
            raise CheckpointError(
                f"{folder} lacks {len(missing)} of the {len(files)} files that {INDEX} names: "
                f"{', '.join(missing[:5])}{' …' if len(missing) > 5 else ''}; download them again"
            )
        for file in files:
            self._add(folder / file, placed)
        for name, file in placed.items():
            if name not in self._places:
                raise CheckpointError(
                    f"{folder / INDEX} places tensor {name} in {file}, which does not contain it: "
                    "index and files are of different checkpoints; download the folder again"
                )

    def _add(self, path: Path, placed: Mapping[str, str]) -> None:
        """Add the tensors of a file, except those which the index places in another one."""
        header, data = _header(path)
        for name, entry in header.items():
            if placed.get(name, path.name) != path.name:
                continue
            if name in self._places:
                raise CheckpointError(f"{path} repeats tensor {name} of {self.where(name)}, unlike {INDEX}")
            if entry["dtype"] not in _DTYPES:
                raise CheckpointError(
                    f"tensor {name} of {path} has type {entry['dtype']}: use the unquantised variant"
                )
            self.tensors[name] = TensorInfo(tuple(entry["shape"]), _DTYPES[entry["dtype"]])
            self._places[name] = _Place(path, data + entry["data_offsets"][0])


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """Return the header of a file and the offset of its data."""
    try:
        with open_regular(path) as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > _MAX_HEADER:
                raise ValueError(f"its header has {length:,} bytes")
            header = parse_bounded(file.read(length))
        with safe_open(path, framework="pt"):
            pass  # checks that lengths, offsets and shapes fit together and fill the file
    except (SafetensorError, OSError, ValueError, struct.error) as error:
        raise CheckpointError(
            f"{path} ({path.stat().st_size:,} bytes) is damaged or incomplete: {error}; download it again"
        ) from error
    header.pop("__metadata__", None)
    return header, 8 + length


def read_index(path: Path) -> dict[str, str]:
    """Return the file name of every tensor. Raises CheckpointError when the index is damaged."""
    try:
        placed = dict(read_json(path, _MAX_INDEX)["weight_map"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path} is not an index of safetensors: {error!r}; remove and download it again"
        ) from error
    for name, file in placed.items():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise CheckpointError(
                f"{path} places tensor {name} in {file!r}: expected the name of a .safetensors file beside it"
            )
    return placed


def _without_safetensors(folder: Path) -> CheckpointError:
    if not folder.is_dir():
        return CheckpointError(f"there is no checkpoint folder {folder}")
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if pickles:
        return CheckpointError(
            f"{folder} has its weights in {pickles[0]}, a pickle, which can run any code when it is read: "
            f"convert them to safetensors"
        )
    return CheckpointError(f"{folder} has no weights: expected {SINGLE} or {INDEX}")
