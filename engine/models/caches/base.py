"""Interface of a sampler's cache of keys and values, for any model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """New tokens of one sequence."""

    row: int
    """Row of the cache."""
    start: int
    """Position of the first token in its sequence."""
    ids: Sequence[int]


class Cache(Protocol):
    """Keys and values of the sequences being sampled, a row each."""

    @property
    def is_invariant(self) -> bool | None:
        """Return whether a sequence's logits are bitwise independent of the batch; None before ``feed``."""

    def feed(self, pieces: Sequence[Piece]) -> Tensor:
        """Continue sequences by their next tokens.

        Args:
            pieces: new tokens of n sequences, in consecutive rows.

        Returns:
            [n, V]: logits after each piece's last token.
        """

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Copy positions ``start`` … ``end``-1 of one row to another, which holds ``start`` positions."""

    def swap(self, a: int, b: int, length: int) -> None:
        """Exchange two rows of at most ``length`` positions."""

    def clear(self, row: int) -> None:
        """Discard the content of a row."""


def split_into_chunks(pieces: Sequence[Piece], limit: int) -> Iterator[list[Piece]]:
    """Yield the pieces in order, cut into chunks of at most ``limit`` tokens."""
    chunk: list[Piece] = []
    room = limit
    for piece in pieces:
        done = 0
        while done < len(piece.ids):
            part = piece.ids[done : done + room]
            chunk.append(Piece(row=piece.row, start=piece.start + done, ids=part))
            done, room = done + len(part), room - len(part)
            if room == 0:
                yield chunk
                chunk, room = [], limit
    if chunk:
        yield chunk
