"""Batching of rows by count and size."""

from __future__ import annotations

from webapp.core.streaming import batched


def test_batches_are_limited_by_count_and_size() -> None:
    batches = list(batched(["aaaa", "b", "c", "d", "ee", "ff"], count=3, size=4, size_of=len))
    assert batches == [["aaaa"], ["b", "c", "d"], ["ee", "ff"]]
    assert list(batched([], count=3, size=4, size_of=len)) == []
