"""Packing of token sequences into rows that contain common prefixes once.

Siblings share their prompt, and the samples of a forked trajectory a long prefix: a row contains it once, and
every branch attends to it (prefix or tree attention). Sequences are sorted, so that each shares the most with
its predecessor: a row takes Σ length − Σ shared tokens, the fewest possible. Results equal those of separate
sequences; only the number of computed tokens differs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Layout of the S sequences of a row of T tokens; each sequence has one piece (of new tokens)."""

    ids: Ids
    """int32 [T]."""
    positions: NDArray[np.int64]
    """int64 [T]: position of each token in its sequences."""
    lengths: tuple[int, ...]
    """Number of new tokens of each piece, in the order of the row; pieces without any are left out."""
    keys: tuple[tuple[tuple[int, int], ...], ...]
    """Ranges of the row that hold each piece's keys in the order of positions, the piece itself last."""
    places: tuple[NDArray[np.int64], ...]
    """For each sequence in the given order: the row's index of each of its tokens."""

    @property
    def num_keys(self) -> tuple[int, ...]:
        """Return the number of keys of each piece."""
        return tuple(sum(end - start for start, end in ranges) for ranges in self.keys)


EMPTY = Layout(ids=np.zeros(0, np.int32), positions=np.zeros(0, np.int64), lengths=(), keys=(), places=())
"""Layout of a row without sequences."""


def shared_length(a: Ids, b: Ids) -> int:
    """Return the length of the common prefix of two sequences."""
    common = min(len(a), len(b))
    differs = np.flatnonzero(a[:common] != b[:common])
    return int(differs[0]) if len(differs) else common


def packed_length(sequences: Sequence[Ids], *, share: int) -> int:
    """Return the number of tokens of a row with all the sequences."""
    return sum(size for size, _ in _clusters(sequences, sys.maxsize, share))


def pack(sequences: Sequence[Ids], budget: int, *, share: int) -> list[list[int]]:
    """Pack sequences into rows of at most ``budget`` tokens, the fullest row first.

    Args:
        sequences: token ids.
        budget: tokens of a row; a longer sequence gets a row of its own.
        share: minimum length of a common prefix for which sequences stay together.

    Returns:
        The indices of the sequences of each row.
    """
    rows: list[list[int]] = []
    used: list[int] = []
    for size, members in sorted(_clusters(sequences, budget, share), key=lambda cluster: -cluster[0]):
        row = next((i for i, filled in enumerate(used) if filled + size <= budget), len(rows))
        if row == len(rows):
            rows.append([])
            used.append(0)
        rows[row] += members
        used[row] += size
    return [rows[i] for i in sorted(range(len(rows)), key=lambda i: -used[i])]


def lay_out(sequences: Sequence[Ids], *, share: int) -> Layout:
    """Lay sequences out in one row; common prefixes of ``share`` tokens or more appear once."""
    if not sequences:
        return EMPTY
    order = _sorted(sequences)
    path: list[tuple[int, int, int]] = []  # the last sequence's ranges: position, end, offset in the row
    ids: list[Ids] = []
    positions: list[NDArray[np.int64]] = []
    lengths: list[int] = []
    keys: list[tuple[tuple[int, int], ...]] = []
    places: dict[int, NDArray[np.int64]] = {}
    width, previous = 0, None
    for index in order:
        sequence = sequences[index]
        shared = 0 if previous is None else _shared(previous, sequence, share)
        path = [(start, min(end, shared), offset) for start, end, offset in path if start < shared]
        if shared < len(sequence):
            path.append((shared, len(sequence), width))
            ids.append(sequence[shared:])
            positions.append(np.arange(shared, len(sequence)))
            lengths.append(len(sequence) - shared)
            keys.append(tuple((offset, offset + end - start) for start, end, offset in path))
            width += len(sequence) - shared
        places[index] = np.concatenate([np.arange(p, p + end - start) for start, end, p in path])
        previous = sequence
    return Layout(
        ids=np.concatenate(ids),
        positions=np.concatenate(positions),
        lengths=tuple(lengths),
        keys=tuple(keys),
        places=tuple(places[index] for index in range(len(sequences))),
    )


def _shared(a: Ids, b: Ids, share: int) -> int:
    common = shared_length(a, b)
    return common if common >= share else 0


def _sorted(sequences: Sequence[Ids]) -> list[int]:
    big_endian = [sequence.astype(">i4").tobytes() for sequence in sequences]
    return sorted(range(len(sequences)), key=big_endian.__getitem__)


def _clusters(sequences: Sequence[Ids], budget: int, share: int) -> Iterator[tuple[int, list[int]]]:
    """Yield the indices of sequences to keep in one row, after their number of tokens."""
    order = _sorted(sequences)
    if not order:
        return
    members, size = [order[0]], len(sequences[order[0]])
    for before, index in pairwise(order):
        common = _shared(sequences[before], sequences[index], share)
        added = len(sequences[index]) - common
        if common and size + added <= budget:
            members.append(index)
            size += added
        else:
            yield size, members
            members, size = [index], len(sequences[index])
    yield size, members
