"""Slots of the KV cache: assignment of rows to sequences, and reuse of finished rows for new prompts.

Active sequences occupy rows 0 … n-1 so that a forward needs no gather. Parked (finished) ones follow
until a prompt continues them or their row is needed. Only a prompt that starts with ALL of a parked
row's tokens may take the row: siblings that merely share a problem statement must not steal each
other's caches. They copy instead: a prefix of the prompt that any row has cached is not recomputed.
Another eviction policy belongs in ``activate`` and ``park``.
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
        cache: empty cache whose rows are the slots.
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
        source = self._continued(place, prompt)
        if source is None:
            spare = range(place, len(self._rows))
            source = min(spare, key=lambda r: (self._rows[r].fed > 0, self._rows[r].used))
            self._empty(source)
        self._swap(source, place)
        row = self._rows[place]
        row.ids, row.fed = prompt, min(row.fed, len(prompt) - 1)
        self._borrow(place)
        self.active.append(owner)

    def append(self, owner: Owner, token: int) -> None:
        """Record a token sampled for ``owner``."""
        self._rows[self.active.index(owner)].ids.append(token)

    def park(self, owner: Owner) -> None:
        """Deactivate ``owner``; keep its row cached for a continuation."""
        place, last = self.active.index(owner), len(self.active) - 1
        self._swap(place, last)
        self.active[place] = self.active[last]
        self.active.pop()
        self._tick += 1
        self._rows[last].used = self._tick

    def forget(self) -> None:
        """Empty the cache; the next feed recomputes all tokens of active sequences."""
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
        """Copy this row's longest prompt prefix cached in another row, if longer than its own."""
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
    """Return the length of the common prefix, at most ``end``; the first ``start`` items are equal."""
    return next((i for i in range(start, end) if a[i] != b[i]), end)
