"""Conversion of the engine's enums to Django choices."""

from __future__ import annotations

from enum import StrEnum


def choices(enum: type[StrEnum]) -> list[tuple[str, str]]:
    """Return ``(value, value)`` pairs as plain strings, so that migrations do not import the engine."""
    return [(str(member.value), str(member.value)) for member in enum]
