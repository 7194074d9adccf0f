"""Retries of requests to the API server: exponential backoff with jitter, or the server's Retry-After."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import stamina

from engine.sandbox.kubernetes.api.errors import ApiError

MAX_PAUSE_S = 15.0


def refused(error: Exception) -> bool | float:
    """Return whether to retry after an error of the API server, or the seconds to wait before the retry."""
    if not isinstance(error, ApiError):
        return False
    return True if error.pause_s is None else error.pause_s


def retrying(
    on: Callable[[Exception], bool | float] = refused, *, within_s: float | None = None
) -> AsyncIterator[stamina.Attempt]:
    """Return the attempts of a request, with backoff.

    Args:
        on: returns whether an error is retried, or the seconds to wait before the retry.
        within_s: time limit for new attempts, seconds; 0 allows a single attempt, None sets no limit.
    """
    return stamina.retry_context(
        on=on,
        attempts=1 if within_s == 0 else None,
        timeout=within_s or None,
        wait_initial=0.1,
        wait_max=MAX_PAUSE_S,
        wait_jitter=0.2,
    )
