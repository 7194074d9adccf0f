"""Removal of the NUL character, which PostgreSQL's text and JSON types cannot store."""

from __future__ import annotations

from typing import Any


def without_nul(value: Any) -> Any:
    """Return ``value`` with every NUL in its strings replaced by U+FFFD."""
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    if isinstance(value, list):
        return [without_nul(item) for item in value]
    if isinstance(value, dict):
        return {without_nul(key): without_nul(item) for key, item in value.items()}
    return value
