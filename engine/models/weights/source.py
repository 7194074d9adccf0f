"""Interface of weights that are read on demand: no reader needs memory for all of them.

To read another format: implement ``WeightSource``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

PIECE_BYTES = 32 << 20
"""Maximum size of a piece that a source reads at once; a single row may be larger."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Shape and type of a stored tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> TensorInfo:
        """Return the description of a tensor."""
        return cls(tuple(tensor.shape), tensor.dtype)

    @property
    def num_bytes(self) -> int:
        """Return the size of the data."""
        return math.prod(self.shape) * self.dtype.itemsize

    def on_meta(self) -> Tensor:
        """Return a tensor of this shape and type without data."""
        return torch.empty(self.shape, dtype=self.dtype, device="meta")


class WeightSource(Protocol):
    """Named tensors, read a range of rows (indices of the first dimension) at a time."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Return the descriptions of all tensors by name."""

    def where(self, name: str) -> str:
        """Return the file of a tensor, for messages."""

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Tensor]:
        """Yield rows ``start`` … ``stop`` on the CPU in consecutive pieces; a scalar is one piece.

        Raises:
            CheckpointError: the file changed or was damaged after it was opened.
        """


def copy_rows(source: WeightSource, name: str, out: Tensor, start: int = 0) -> None:
    """Fill ``out`` with the rows of a stored tensor from ``start`` on, cast to its dtype and device."""
    if not out.dim():
        out.copy_(next(source.rows(name)))
        return
    done = 0
    for piece in source.rows(name, start, start + len(out)):
        out[done : done + len(piece)].copy_(piece)
        done += len(piece)


def read_tensor(source: WeightSource, name: str, dtype: torch.dtype | None = None) -> Tensor:
    """Return a whole tensor on the CPU, in its own dtype or another one."""
    info = source.tensors[name]
    out = torch.empty(info.shape, dtype=dtype or info.dtype)
    copy_rows(source, name, out)
    return out


class TensorsInMemory:
    """``WeightSource`` over tensors that exist already, e.g. the weights of a model."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = {name: tensor.detach() for name, tensor in tensors.items()}
        self.tensors: Mapping[str, TensorInfo] = {
            name: TensorInfo.of(tensor) for name, tensor in tensors.items()
        }

    def where(self, name: str) -> str:  # noqa: ARG002
        """Return the place of a tensor, for messages."""
        return "memory"

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Tensor]:
        """Yield the rows in one piece."""
        tensor = self._tensors[name].cpu()
        yield tensor[start:stop] if tensor.dim() else tensor
