"""Retries of gradings that infrastructure lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from engine.types import Grade, Verdict

_LONGEST_WAIT_S = 60.0


def retry_waits(retries: int, first_s: float) -> list[float]:
    """Return the waits before retries, seconds: each twice as long as the one before, up to a minute."""
    return [min(_LONGEST_WAIT_S, first_s * 2**n) for n in range(retries)]


async def graded(grade: Callable[[], Awaitable[Grade]], waits: Sequence[float]) -> Grade:
    """Grade once; a grading lost to infrastructure is repeated after each of the waits, seconds."""
    result = await grade()
    for wait_s in waits:
        if result.verdict is not Verdict.INFRA_ERROR:
            break
        await asyncio.sleep(wait_s)
        result = await grade()
    return result
