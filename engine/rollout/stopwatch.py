"""Measurement of the seconds that a part of a rollout takes."""

from __future__ import annotations

import time
from collections.abc import Callable


class Stopwatch:
    """Context manager that reports the duration of its block, also when the block raises."""

    def __init__(self, spent: Callable[[str, float], None], what: str) -> None:
        self._spent = spent
        self._what = what
        self._began = 0.0

    async def __aenter__(self) -> None:
        self._began = time.monotonic()

    async def __aexit__(self, *_error: object) -> None:
        self._spent(self._what, time.monotonic() - self._began)
