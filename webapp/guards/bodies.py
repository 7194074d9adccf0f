"""Bounds request bodies before they are read: Django reads a body whole, to disk, before any view decides."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

from webapp.services.ingestion.ingest import MAX_BYTES

MAX_OTHER = 2 * 1024 * 1024
"""Forms and JSON of people."""
_INGEST = re.compile(r"/api/v1/runs/\d+/events$")
Application = Callable[..., Awaitable[Any]]


class _TooLargeError(Exception):
    """More was sent than the path accepts."""


class BodyLimit:
    """Answers 413 as soon as a body's length, announced or received, exceeds what its path accepts."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Pass the request on with a counted body."""
        limit = limit_of(scope["path"])
        if _announced(scope) > limit:
            await _refuse(send, limit)
            return
        received = 0
        answered = False

        async def counted() -> Any:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise _TooLargeError
            return message

        async def noted(message: Any) -> None:
            nonlocal answered
            answered = True
            await send(message)

        try:
            await self._application(scope, counted, noted)
        except _TooLargeError:
            if not answered:
                await _refuse(send, limit)


def limit_of(path: str) -> int:
    """Return how many bytes a body sent to ``path`` may have."""
    return MAX_BYTES if _INGEST.search(path) else MAX_OTHER


def _announced(scope: dict[str, Any]) -> int:
    for name, value in scope["headers"]:
        if name.lower() == b"content-length":
            return int(value) if value.isdigit() else 0
    return 0


async def _refuse(send: Any, limit: int) -> None:
    body = json.dumps({"detail": f"the body has more than {limit} bytes; send less at once"}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": body})
