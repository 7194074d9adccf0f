"""Pairs of names that stand for each other."""

from __future__ import annotations


def both_ways(*pairs: tuple[str, str]) -> dict[str, str]:
    """Return each name of the pairs with the other one."""
    return {name: other for pair in pairs for name, other in (pair, pair[::-1])}
