"""Layout of a packed row: pieces of sequences without padding, which attend causally to their own sequence.

Sequences that begin alike may share their beginning: it is in the row once, and the pieces of several
sequences have it among their keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Starts and ends of parts of a row."""


class Exchange(Protocol):
    """Collectives of the C ranks that share a packed row; each holds T of its C·T tokens.

    All are differentiable. Tensors are [tokens, heads, D].
    """

    @property
    def rank(self) -> int:
        """Return this rank's number, 0 … C − 1."""

    @property
    def size(self) -> int:
        """Return C."""

    @property
    def row(self) -> Segments:
        """Return the layout of the whole row."""

    def gather(self, local: Tensor) -> Tensor:
        """Return all tokens of the row, in order."""

    def scatter_heads(self, local: Tensor) -> Tensor:
        """Return all tokens of the row, in order, with this rank's share of the heads."""

    def gather_heads(self, row: Tensor) -> Tensor:
        """Return this rank's tokens with all heads: the inverse of ``scatter_heads``."""


class Store(Protocol):
    """Cache of keys and values for one forward of T new tokens; their sequences began in earlier forwards."""

    def exchange(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store a layer's new keys and values [T, kv_heads, D]; return all that ``keys`` index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """Attention layout of the T tokens of a packed row; pieces are contiguous and cover the row in order."""

    positions: Tensor
    """int64 [T]: position of each token in its own sequence."""
    lengths: tuple[int, ...]
    """Number of queries of each piece."""
    keys: tuple[Ranges, ...]
    """Where in the row each piece's keys are, in the order of their positions, from 0 on; the last query of a
    piece attends to all of them, the one before it to all but one, and so on."""
    exchange: Exchange | None = None
    """Collectives with the ranks that hold the rest of the row, which ``keys`` index; None: T is all."""
    store: Store | None = None
    """Cache that holds what ``keys`` index; None: the row itself does."""

    @classmethod
    def whole(cls, lengths: Sequence[int], device: torch.device) -> Segments:
        """Return the segments of complete sequences of these lengths."""
        ends = list(accumulate(lengths))
        positions = torch.cat([torch.arange(length) for length in lengths])
        return cls(
            positions=positions.to(device),
            lengths=tuple(lengths),
            keys=tuple(((end - length, end),) for length, end in zip(lengths, ends, strict=True)),
        )

    @property
    def num_keys(self) -> tuple[int, ...]:
        """Return the number of keys of each piece."""
        return tuple(sum(end - start for start, end in ranges) for ranges in self.keys)


def cuts(keys: Sequence[Ranges], width: int) -> list[int]:
    """Return the places, 0 and ``width`` included, that cut a row so that each range is of whole parts."""
    return sorted({0, width, *(place for ranges in keys for pair in ranges for place in pair)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """Conversion of products of queries and keys into attention weights."""

    scale: float | None = None
    """Factor of the products; None: D ** -0.5."""
    window: int | None = None
    """Number of most recent keys that a query sees, its own included; None: all."""
    softcap: float | None = None
    """c: scores become c · tanh(score / c)."""
    sinks: Tensor | None = None
    """[heads]: score of one more key of each head, whose value is zero."""
