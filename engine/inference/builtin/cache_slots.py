"""Slots of the KV cache: assignment of rows to sequences, and reuse of finished ones for new prompts.

Active sequences occupy rows 0 … n-1 so that a forward needs no gather; parked (finished) ones lie
behind them until a prompt continues them or their row is needed. Only a prompt that starts with ALL
of a parked row's tokens may take it: siblings that merely share a problem statement must not steal
each other's caches. They copy instead: whatever any row has already fed of a prompt's beginning is
not computed again. Another policy of what to keep belongs into ``activate`` and ``park``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from torch import Tensor

from engine.models.caches.base import Cache, Piece

Owner = TypeVar("Owner")


@dataclass(slots=True)
class _Row:
    """Tokens of a cached sequence; the first ``fed`` have their keys and values in the cache."""

    ids: list[int] = field(default_factory=list)
    fed: int = 0
    used: int = 0
    """Tick of the last activity: the least recently used parked row is evicted first."""


class CacheSlots(Generic[Owner]):
    """KV cache of at most ``rows`` sequences; owners are hashable request objects.

    Args:
        cache: empty; its rows are the slots.
        rows: maximum number of sequences, active and parked together.
    """

    def __init__(self, cache: Cache, rows: int) -> None:
        self._cache = cache
        self._rows = [_Row() for _ in range(rows)]
        self._tick = 0
        self.active: list[Owner] = []
        """Owners in row order."""

    def activate(self, owner: Owner, prompt: Sequence[int]) -> None:
        """Assign the next active row to ``owner``, reusing the cache that its prompt continues."""
        place = len(self.active)
        prompt = list(prompt)
        found = self._continued(place, prompt)
        if found is None:
            spare = range(place, len(self._rows))
            found = min(spare, key=lambda r: (self._rows[r].fed > 0, self._rows[r].used))
            self._empty(found)
        self._swap(found, place)
        row = self._rows[place]
        row.ids, row.fed = prompt, min(row.fed, len(prompt) - 1)
        self._borrow(place)
        self.active.append(owner)

    def append(self, owner: Owner, token: int) -> None:
        """Record a token sampled for ``owner``."""
        self._rows[self.active.index(owner)].ids.append(token)

    def park(self, owner: Owner) -> None:
        """End ``owner``'s activity; its row waits for a continuation."""
        place, last = self.active.index(owner), len(self.active) - 1
        self._swap(place, last)
        self.active[place] = self.active[last]
        self.active.pop()
        self._tick += 1
        self._rows[last].used = self._tick

    def forget(self) -> None:
        """Empty all rows; the next feed computes all tokens of the active ones again."""
        for place, row in enumerate(self._rows):
            ids = row.ids if place < len(self.active) else []
            self._empty(place)
            self._rows[place].ids = ids

    def clear(self) -> list[Owner]:
        """Empty everything and return the owners that were active."""
        owners, self.active = self.active, []
        for place in range(len(self._rows)):
            self._empty(place)
        return owners

    def feed_prompts(self, owners: Sequence[Owner]) -> Tensor:
        """Feed the unfed tokens of ``owners`` (the last activated ones); return next-token logits [N, V]."""
        return self._feed(len(self.active) - len(owners))

    def feed_last(self) -> Tensor:
        """Feed the unfed tokens of every active sequence, the last sampled one; return logits [n, V]."""
        return self._feed(0)

    def _feed(self, first: int) -> Tensor:
        rows = self._rows[first : len(self.active)]
        pieces = [
            Piece(row=place, start=row.fed, ids=row.ids[row.fed :]) for place, row in enumerate(rows, first)
        ]
        logits = self._cache.feed(pieces)
        for row in rows:
            row.fed = len(row.ids)
        return logits

    def _continued(self, place: int, prompt: list[int]) -> int | None:
        """Return the parked row with the longest cached prefix of ``prompt``."""
        best, length = None, 0
        for index in range(place, len(self._rows)):
            row = self._rows[index]
            if length < row.fed < len(prompt) and row.ids[: row.fed] == prompt[: row.fed]:
                best, length = index, row.fed
        return best

    def _borrow(self, place: int) -> None:
        """Copy the cached part of this row's prompt from another row, as far as it has more."""
        row = self._rows[place]
        donor, shared = place, row.fed
        for index, other in enumerate(self._rows):
            reach = min(other.fed, len(row.ids) - 1)
            if index != place and reach > shared and other.ids[:shared] == row.ids[:shared]:
                length = _common_length(other.ids, row.ids, shared, reach)
                if length > shared:
                    donor, shared = index, length
        if donor != place:
            self._cache.copy(donor, place, row.fed, shared)
            row.fed = shared

    def _empty(self, place: int) -> None:
        self._rows[place] = _Row()
        self._cache.clear(place)

    def _swap(self, a: int, b: int) -> None:
        if a != b:
            self._cache.swap(a, b, max(self._rows[a].fed, self._rows[b].fed))
            self._rows[a], self._rows[b] = self._rows[b], self._rows[a]


def _common_length(a: Sequence[int], b: Sequence[int], start: int, end: int) -> int:
    """Return the length of the common prefix of ``a`` and ``b``, at most ``end``; known up to ``start``."""
    return next((i for i in range(start, end) if a[i] != b[i]), end)
