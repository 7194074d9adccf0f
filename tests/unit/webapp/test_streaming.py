"""Rows and downloads are handled in parts of limited size."""

from __future__ import annotations

from webapp.core.streaming import batched


def test_a_batch_ends_by_its_number_or_its_size() -> None:
    found = list(batched(["aaaa", "b", "c", "d", "ee", "ff"], count=3, size=4, size_of=len))
    assert found == [["aaaa"], ["b", "c", "d"], ["ee", "ff"]]
    assert list(batched([], count=3, size=4, size_of=len)) == []
