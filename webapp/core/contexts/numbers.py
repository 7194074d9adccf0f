"""Numbers in addresses: whatever a query string holds becomes a number that the database can compare."""

from __future__ import annotations

from collections.abc import Mapping

MOST = 2**31 - 1
MOST_ID = 2**63 - 1


def whole(text: str, *, most: int = MOST) -> int | None:
    """Return the whole number from 0 to ``most`` that a text holds; None for anything else."""
    if not text.isdecimal() or len(text) > 19:
        return None
    number = int(text)
    return number if number <= most else None


def bounds(params: Mapping[str, str]) -> tuple[float | None, float | None]:
    """Return the part of an axis that ``from`` and ``to`` name. Raises ValueError for what is no number."""
    low, high = (float(params[name]) if params.get(name) else None for name in ("from", "to"))
    return low, high
