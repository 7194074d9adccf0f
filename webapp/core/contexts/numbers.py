"""Parsing of numbers in URLs, limited to the range of the database's integer columns."""

from __future__ import annotations

from collections.abc import Mapping

MOST = 2**31 - 1
MOST_ID = 2**63 - 1


def whole(text: str, *, most: int = MOST) -> int | None:
    """Parse a whole number from 0 to ``most``; return None for any other text."""
    if not text.isdecimal() or len(text) > 19:
        return None
    number = int(text)
    return number if number <= most else None


def page_number(params: Mapping[str, str]) -> int:
    """Return ``page`` of a query string; 1 if it is missing or invalid."""
    return whole(params.get("page", "")) or 1


def bounds(params: Mapping[str, str]) -> tuple[float | None, float | None]:
    """Return the range of an axis from ``from`` to ``to``. Raises ValueError if one is not a number."""
    low, high = (float(params[name]) if params.get(name) else None for name in ("from", "to"))
    return low, high
