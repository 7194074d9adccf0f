"""Keys and values of the sequences being sampled."""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn import functional

_GROWTH = 256
"""Positions by which a cache grows; doubling could reserve twice the longest sequence in every row."""


class CacheShape(Protocol):
    """Sizes of a model on which its cache depends."""

    @property
    def num_hidden_layers(self) -> int:
        """Return the number of layers, each with keys and values of its own."""

    @property
    def num_key_value_heads(self) -> int:
        """Return the number of key and value heads, which query heads share."""

    @property
    def head_dim(self) -> int:
        """Return the number of elements of one key or value."""


class KVCache:
    """Keys and values of ``rows`` sequences, ``[layers, rows, kv_heads, capacity, head_dim]`` each."""

    def __init__(self, config: CacheShape, rows: int, *, device: torch.device, dtype: torch.dtype) -> None:
        shape = (config.num_hidden_layers, rows, config.num_key_value_heads, 0, config.head_dim)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)

    def reserve(self, length: int) -> None:
        """Reserve memory for sequences of ``length`` tokens, keeping the stored ones."""
        capacity = self.keys.shape[3]
        if length <= capacity:
            return
        pad = (0, 0, 0, -(-length // _GROWTH) * _GROWTH - capacity)
        self.keys = functional.pad(self.keys, pad)
        self.values = functional.pad(self.values, pad)

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Copy positions ``start`` … ``end``-1 of one row to another."""
        for store in (self.keys, self.values):
            store[:, target, :, start:end] = store[:, source, :, start:end]

    def swap(self, a: int, b: int, length: int) -> None:
        """Exchange the first ``length`` positions of two rows."""
        if a == b or length == 0:
            return
        for store in (self.keys, self.values):
            kept = store[:, a, :, :length].clone()
            store[:, a, :, :length] = store[:, b, :, :length]
            store[:, b, :, :length] = kept
