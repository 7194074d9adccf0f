"""Turns the engine's enums into Django choices, so that both sides share one list of words."""

from __future__ import annotations

from enum import StrEnum


def choices(enum: type[StrEnum]) -> list[tuple[str, str]]:
    """``(value, value)`` pairs as plain strings, so that migrations do not import the engine."""
    return [(str(member.value), str(member.value)) for member in enum]
