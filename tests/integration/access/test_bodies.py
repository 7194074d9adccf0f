"""Bodies are bounded before they are read, announced and in chunks."""

from __future__ import annotations

from typing import Any

import pytest
from channels.db import database_sync_to_async

from tests.builders.web_builders import launched
from webapp.ingestion.bodies import MAX_OTHER, BodyLimit
from webapp.ingestion.services.ingest import MAX_BYTES

CHUNK = 65_536
EVENTS = "/api/v1/runs/1/events"


async def send(path: str, *, announced: int | None, sent: int, token: str = "") -> tuple[int, int]:
    """Return the status of a request, and how many bytes of its body were read."""
    answers: list[dict[str, Any]] = []
    taken = 0

    async def receive() -> dict[str, Any]:
        nonlocal taken
        piece = min(CHUNK, sent - taken)
        taken += piece
        return {"type": "http.request", "body": b"x" * piece, "more_body": taken < sent}

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
    return int(answers[0]["status"]), taken


async def is_read_up_to(limit: int, path: str, token: str = "") -> None:
    assert await send(path, announced=limit + 1, sent=limit + 1, token=token) == (413, 0)
    assert await send(path, announced=limit, sent=limit, token=token) == (200, limit)
    assert await send(path, announced=None, sent=limit, token=token) == (200, limit)
    status, taken = await send(path, announced=None, sent=2 * limit, token=token)
    assert status == 413
    assert limit < taken <= limit + CHUNK


@pytest.mark.parametrize("path", ["/login/", "/api/v1/runs/1/heartbeat", f"{EVENTS}/more"])
async def test_only_events_may_be_large(path: str) -> None:
    await is_read_up_to(MAX_OTHER, path, token="a run's")


@pytest.mark.django_db(transaction=True)
async def test_large_events_are_read_from_runs_alone() -> None:
    run, claim = await database_sync_to_async(launched)()
    events = f"/api/v1/runs/{run.pk}/events"
    await is_read_up_to(MAX_BYTES, events, token=claim.token)
    await is_read_up_to(MAX_OTHER, events)
    await is_read_up_to(MAX_OTHER, events, token="another")
    await is_read_up_to(MAX_OTHER, f"/api/v1/runs/{run.pk + 1}/events", token=claim.token)
