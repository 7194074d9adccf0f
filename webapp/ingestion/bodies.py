"""Limits of request bodies, applied before Django reads a complete body to disk.

Only runs may send large bodies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

from channels.db import database_sync_to_async

from webapp.ingestion.services import ingest

MAX_OTHER = 2 * 1024 * 1024
"""Maximum size of forms and JSON of people, and of bodies from unknown callers, bytes."""
_INGEST = re.compile(r"/api/v1/runs/(\d{1,18})/events$")
Application = Callable[..., Awaitable[Any]]


class _TooLargeError(Exception):
    """The body exceeds the limit of its path."""


class BodyLimit:
    """Middleware that answers 413 as soon as the announced or received length exceeds the path's limit."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Pass the request on, and count the bytes of its body."""
        announced = _announced(scope)
        limit = MAX_OTHER
        if (announced is None or announced > limit) and await _is_of_a_run(scope):
            limit = ingest.MAX_BYTES
        if announced is not None and announced > limit:
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


async def _is_of_a_run(scope: dict[str, Any]) -> bool:
    """Return whether the request posts events with an ingest token of their run."""
    path = _INGEST.search(scope["path"])
    scheme, _, token = _header(scope, b"authorization").partition(b" ")
    if path is None or scheme.lower() != b"bearer":
        return False
    known = database_sync_to_async(ingest.knows)
    return bool(await known(run_id=int(path[1]), token=token.decode("latin-1")))


def _announced(scope: dict[str, Any]) -> int | None:
    """Return the request's ``Content-Length``; None if it is missing or invalid."""
    value = _header(scope, b"content-length")
    return int(value) if value.isdigit() and len(value) <= 18 else None


def _header(scope: dict[str, Any], name: bytes) -> bytes:
    return next((value for key, value in scope["headers"] if key.lower() == name), b"")


async def _refuse(send: Any, limit: int) -> None:
    body = json.dumps({"detail": f"the body has more than {limit} bytes; send less at once"}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": body})
