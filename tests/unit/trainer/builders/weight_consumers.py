"""Consumers of a trainer's weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from engine.inference.base import WeightStream

IDS = [7, 3, 9, 12, 3, 3, 15, 0, 8]
"""Tokens whose log-probabilities tests compare."""


@dataclass(frozen=True)
class Store:
    """Consumer that writes tensors to a file and returns their ordered names and peft's settings."""

    path: Path
    dtype: torch.dtype = torch.float32

    def __call__(self, weights: WeightStream) -> tuple[list[str], Any]:
        tensors = {name: tensor.cpu().contiguous() for name, tensor in weights.tensors}
        assert list(tensors) == list(weights.infos)
        for name, info in weights.infos.items():
            assert tuple(tensors[name].shape) == info.shape
            assert tensors[name].dtype == info.dtype
        save_file(tensors, self.path)
        return list(tensors), weights.adapter


@dataclass(frozen=True)
class Broken:
    """Consumer that fails after the first tensor."""

    dtype: torch.dtype = torch.float32

    def __call__(self, weights: WeightStream) -> None:
        next(weights.tensors)
        raise OSError("no space left")


@dataclass(frozen=True)
class Drop:
    """Consumer that reads one tensor at a time and keeps none."""

    dtype: torch.dtype = torch.float32

    def __call__(self, weights: WeightStream) -> int:
        return sum(1 for _ in weights.tensors)


@dataclass(frozen=True)
class Hoard:
    """Consumer that keeps every tensor until the last has arrived."""

    dtype: torch.dtype = torch.float32

    def __call__(self, weights: WeightStream) -> int:
        return len(list(weights.tensors))
