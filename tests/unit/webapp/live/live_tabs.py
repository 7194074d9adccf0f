"""Browser tabs that exchange WebSocket messages with the application in this process."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from asgiref.testing import ApplicationCommunicator
from channels.db import database_sync_to_async
from django.conf import settings as django_settings
from django.test import Client
from django.utils import timezone

from tests.builders.web.page_builders import Yard, add_live_step, make_yard
from tests.builders.web.web_builders import hand_over, make_user
from webapp.asgi import application
from webapp.core.permissions import Role
from webapp.models import Run

in_thread = database_sync_to_async


def populated() -> tuple[Yard, Client]:
    """Create a yard, with heartbeats that stay fresh for an hour, and an operator's client."""
    yard = make_yard(iterations=1, group_size=2)
    Run.objects.update(heartbeat_at=timezone.now() + timedelta(hours=1))
    client = Client(HTTP_HOST="localhost")
    client.force_login(make_user("ada", Role.OPERATOR))
    hand_over("ada")
    return yard, client


class Socket:
    """Browser end of a WebSocket to the application in this process."""

    def __init__(self, headers: list[tuple[bytes, bytes]]) -> None:
        scope = {
            "type": "websocket",
            "path": "/ws/live/",
            "query_string": b"",
            "headers": headers,
            "subprotocols": [],
        }
        self._application: Any = ApplicationCommunicator(application, scope)  # type: ignore[no-untyped-call]

    async def open(self) -> bool:
        """Connect and return whether the application accepted the connection."""
        await self._application.send_input({"type": "websocket.connect"})
        return bool((await self.output())["type"] == "websocket.accept")

    async def send(self, text: str) -> None:
        """Send a message."""
        await self._application.send_input({"type": "websocket.receive", "text": text})

    async def output(self) -> dict[str, Any]:
        """Return the next message of the application."""
        message: dict[str, Any] = await self._application.receive_output(timeout=120)
        return message

    async def close(self) -> None:
        """Disconnect and wait until the application has handled it."""
        await self._application.send_input({"type": "websocket.disconnect", "code": 1000})
        await self._application.wait(timeout=240)


class Tab:
    """State of a browser tab: the loaded page with the updates received since."""

    def __init__(self, socket: Socket) -> None:
        self.socket = socket
        self.regions: dict[str, str] = {}
        self.steps: list[str] = []
        self.updates: list[dict[str, Any]] = []
        self.charts: dict[str, Any] | None = None

    async def receive(self) -> dict[str, Any]:
        """Receive one message and apply it as ``live.js`` does."""
        message: dict[str, Any] = json.loads((await self.socket.output())["text"])
        if message["type"] != "update":
            return message
        self.updates.append(message)
        self.regions |= message["html"]
        if steps := message.get("steps"):
            self.steps[steps["start"] :] = steps["html"]
        if points := message.get("points"):
            self.add_points(points)
        return message

    def add_points(self, points: dict[str, Any]) -> None:
        """Append or replace chart points."""
        if "reset" in points or self.charts is None:
            self.charts = points["reset"]
            return
        self.charts["x"] += points["x"]
        for key, column in self.charts["columns"].items():
            column += points["columns"][key]

    def sent_steps(self) -> list[str]:
        """Return the steps of all updates; a step may precede the update with its event's number."""
        return [step for update in self.updates for step in update.get("steps", {}).get("html", [])]

    async def until(self, seq: int) -> None:
        """Receive until the tab shows event ``seq``."""
        while not self.updates or self.updates[-1]["seq"] < seq:
            await self.receive()


@asynccontextmanager
async def tab(client: Client | None, **subscribe: Any) -> AsyncIterator[Tab]:
    """Open a WebSocket with the client's session."""
    headers = [(b"origin", b"http://localhost"), (b"host", b"localhost")]
    if client is not None:
        cookie = client.cookies[django_settings.SESSION_COOKIE_NAME].value
        headers.append((b"cookie", f"{django_settings.SESSION_COOKIE_NAME}={cookie}".encode()))
    socket = Socket(headers)
    assert await socket.open()
    opened = Tab(socket)
    if subscribe:
        await socket.send(json.dumps(subscribe))
        assert (await opened.receive())["type"] == "ready"
    try:
        yield opened
    finally:
        await socket.close()


def fetch(client: Client, address: str) -> str:
    response = client.get(address)
    assert response.status_code == 200, address
    return response.content.decode()


def add_and_post(yard: Yard, index: int) -> None:
    add_live_step(yard, yard.iterations, index)
    yard.post()
