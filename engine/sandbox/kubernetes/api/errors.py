"""Errors of requests to the API server, with their details as fields."""

from __future__ import annotations

import json
import random
from typing import Any

import aiohttp

from engine.errors import SandboxError
from engine.sandbox.kubernetes.api.rights import Right, Rights

_PASSING = frozenset((408, 429, 500, 502, 503, 504))
_SHOWN = 500


class ApiError(SandboxError):
    """A request to the API server was rejected, failed or timed out.

    Attributes:
        status: HTTP status; 0 when there was no answer.
        reason: the Status object's, e.g. ``AlreadyExists``.
        retry_after: the wait requested by the server, seconds.
        starting: the account was denied a right that it has had before, as by a server that just started.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        reason: str = "",
        retry_after: float = 0.0,
        starting: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after
        self.starting = starting

    @property
    def passing(self) -> bool:
        """Return whether the same request may succeed later."""
        return self.status == 0 or self.status in _PASSING or self.starting

    @property
    def pause_s(self) -> float | None:
        """Return the wait before the next attempt, seconds; None leaves it to exponential backoff."""
        return self.retry_after + random.uniform(0.0, 1.0) if self.retry_after else None


def read_failure(response: aiohttp.ClientResponse, text: str, right: Right, rights: Rights) -> ApiError:
    """Return the error of a rejected request.

    Args:
        text: the response's body.
        right: the right that the request needs.
        rights: the known rights of the account.
    """
    try:
        status: Any = json.loads(text)
    except ValueError:
        status = None
    status = status if isinstance(status, dict) else {}
    try:
        retry_after = float(response.headers.get("Retry-After", 0))
    except ValueError:
        retry_after = 0.0
    details = status.get("details")
    named = isinstance(details, dict) and bool(details.get("name"))
    # Admission and quotas refuse an object, which they name; RBAC refuses its creation before it is read.
    denied = response.status == 403 and not (right.verb == "create" and named)
    return ApiError(
        str(status.get("message") or text[:_SHOWN] or response.reason),
        status=response.status,
        reason=str(status.get("reason") or ""),
        retry_after=retry_after,
        starting=denied and right in rights,
    )
