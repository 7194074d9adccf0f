"""Bodies are bounded before they are read, announced and in chunks."""

from __future__ import annotations

from typing import Any

import pytest

from webapp.guards.bodies import MAX_OTHER, BodyLimit
from webapp.services.ingestion.ingest import MAX_BYTES

CHUNK = 65_536
EVENTS = "/api/v1/runs/1/events"


async def send(path: str, *, announced: int | None, sent: int) -> tuple[int, int]:
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
    await BodyLimit(read_all)({"path": path, "headers": headers}, receive, answer)
    return int(answers[0]["status"]), taken


@pytest.mark.parametrize(("path", "limit"), [("/login/", MAX_OTHER), (EVENTS, MAX_BYTES)])
async def test_a_body_is_read_up_to_the_bound_of_its_path(path: str, limit: int) -> None:
    assert await send(path, announced=limit + 1, sent=limit + 1) == (413, 0)
    assert await send(path, announced=limit, sent=limit) == (200, limit)
    assert await send(path, announced=None, sent=limit) == (200, limit)
    status, taken = await send(path, announced=None, sent=2 * limit)
    assert status == 413
    assert limit < taken <= limit + CHUNK


@pytest.mark.parametrize("path", ["/api/v1/runs", "/api/v1/runs/1/heartbeat", "/nowhere", f"{EVENTS}/more"])
async def test_only_events_may_be_large(path: str) -> None:
    assert (await send(path, announced=MAX_OTHER + 1, sent=0))[0] == 413
