"""Request bodies are limited before they are read, with and without a content length."""

from __future__ import annotations

from typing import Any

import pytest
from channels.db import database_sync_to_async

from tests.builders.web.web_builders import launched
from webapp.ingestion.bodies import MAX_OTHER, BodyLimit
from webapp.ingestion.services.ingest import MAX_BYTES

CHUNK = 65_536
EVENTS = "/api/v1/runs/1/events"


async def send(path: str, *, announced: int | None, sent: int, token: str = "") -> tuple[int, int]:
    """Send a request; return its status and the number of body bytes that were read."""
    answers: list[dict[str, Any]] = []
    bytes_read = 0

    async def receive() -> dict[str, Any]:
        nonlocal bytes_read
        piece = min(CHUNK, sent - bytes_read)
        bytes_read += piece
        return {"type": "http.request", "body": b"x" * piece, "more_body": bytes_read < sent}

    async def answer(message: dict[str, Any]) -> None:
        answers.append(message)

    async def read_all(_scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass
        await send({"type": "http.response.start", "status": 200})

    headers = [] if announced is None else [(b"content-length", str(announced).encode())]
    if token:
        headers.append((b"authorization", f"Bearer {token}".encode()))
    await BodyLimit(read_all)({"path": path, "headers": headers}, receive, answer)
    return int(answers[0]["status"]), bytes_read


async def assert_read_limit(limit: int, path: str, token: str = "") -> None:
    assert await send(path, announced=limit + 1, sent=limit + 1, token=token) == (413, 0)
    assert await send(path, announced=limit, sent=limit, token=token) == (200, limit)
    assert await send(path, announced=None, sent=limit, token=token) == (200, limit)
    status, bytes_read = await send(path, announced=None, sent=2 * limit, token=token)
    assert status == 413
    assert limit < bytes_read <= limit + CHUNK


@pytest.mark.parametrize("path", ["/login/", "/api/v1/runs/1/heartbeat", f"{EVENTS}/more"])
async def test_bodies_of_other_paths_have_the_small_limit(path: str) -> None:
    await assert_read_limit(MAX_OTHER, path, token="a run's")


@pytest.mark.django_db(transaction=True)
async def test_large_event_bodies_require_the_token_of_their_run() -> None:
    run, claim = await database_sync_to_async(launched)()
    events = f"/api/v1/runs/{run.pk}/events"
    await assert_read_limit(MAX_BYTES, events, token=claim.token)
    await assert_read_limit(MAX_OTHER, events)
    await assert_read_limit(MAX_OTHER, events, token="another")
    await assert_read_limit(MAX_OTHER, f"/api/v1/runs/{run.pk + 1}/events", token=claim.token)
