"""Retries of requests to the API server: exponential backoff with jitter, never sooner than it asks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import stamina

from engine.sandbox.kubernetes.api.errors import ApiError

MAX_PAUSE_S = 15.0


def refused(error: Exception) -> bool | float:
    """Retry whatever the API server said."""
    if not isinstance(error, ApiError):
        return False
    return True if error.pause_s is None else error.pause_s


def retrying(
    on: Callable[[Exception], bool | float] = refused, *, within_s: float | None = None
) -> AsyncIterator[stamina.Attempt]:
    """Return the attempts of a request.

    Args:
        on: whether an error is worth another attempt, or after how many seconds it is.
        within_s: how long to begin new attempts, seconds; 0 makes a single one, None has no end.
    """
    return stamina.retry_context(
        on=on,
        attempts=1 if within_s == 0 else None,
        timeout=within_s or None,
        wait_initial=0.1,
        wait_max=MAX_PAUSE_S,
        wait_jitter=0.2,
    )
