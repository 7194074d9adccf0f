"""Layout of a packed row: pieces of sequences without padding, which attend causally to their own sequence.

Sequences may share a common prefix: the row holds it once, and the pieces of several sequences have it among
their keys.
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
        """Store a layer's new keys and values [T, kv_heads, D]; return all that ``Segments.keys`` index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleQueries:
    """Consecutive pieces of one query each, whose keys are padded to the same number."""

    num_keys: tuple[int, ...]
    """Number of keys of each piece, in any order."""
    width: int
    """Number of keys of each piece with its padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """Attention layout of the T tokens of a packed row; pieces are contiguous and cover the row in order."""

    positions: Tensor
    """int64 [T]: position of each token in its own sequence."""
    lengths: tuple[int, ...]
    """Number of queries of each piece."""
    keys: tuple[Ranges, ...]
    """Ranges of the row with each piece's keys, in the order of positions from 0; the last query of a piece
    attends to all of them, the previous query to all but the last, and so on."""
    exchange: Exchange | None = None
    """Collectives with the other ranks of the row, all of which ``keys`` index; None: T is the whole row."""
    store: Store | None = None
    """Cache that ``keys`` index; None: they index the row itself."""
    singles: tuple[SingleQueries, ...] = ()
    """Where every piece has one query: all pieces, in batches; the padded keys of a batch follow one another
    in the order of its pieces."""

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


def boundaries(keys: Sequence[Ranges], width: int) -> list[int]:
    """Return boundaries, 0 and ``width`` included, that cut a row such that each range has whole parts."""
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
    """[heads]: score of an additional key of each head, whose value is zero."""

    @property
    def is_explicit(self) -> bool:
        """Return whether scores must be computed one by one, as no fused kernel of a CPU supports them."""
        return self.softcap is not None or self.sinks is not None
