"""WebSocket of a browser tab, for live updates of the shown page.

A tab sends the identity of its page and the extent of its data. ``webapp.live.hub`` offers snapshots of the
page to the consumer, which sends only changed regions. A tab that reads slowly skips snapshots and does not
delay other tabs. A tab needs memory for one digest per region, regardless of the run's size.
``webapp.live.watch`` handles ended sessions and lost messages.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from typing import Any
from urllib.parse import parse_qsl

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from webapp.core.permissions import Person, Role, person_of
from webapp.live.fragments import OWNED, PAGES, SAME_FOR_ALL, TARGET_LENGTHS, Snapshot, Subscription
from webapp.live.hub import Hub, cancelled
from webapp.live.watch import FORBIDDEN, SIGNED_OUT, Watch

MAX_MESSAGE = 8192
_SHARED: dict[asyncio.AbstractEventLoop, tuple[Hub, Watch]] = {}

log = logging.getLogger(__name__)


class Subscribe(BaseModel):
    """Message of a tab, sent at connection and at every change of its page."""

    model_config = ConfigDict(extra="forbid")
    page: str
    run: int | None = Field(default=None, ge=1, lt=2**63)
    target: list[str] = Field(default_factory=list, max_length=4)
    after: int = 0
    query: str = Field(default="", max_length=4096)
    steps: int = Field(default=0, ge=0)
    identity: str = Field(default="", max_length=100)
    point: float | None = None
    series: list[str] = Field(default_factory=list, max_length=100)


class LiveConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]
    """WebSocket consumer of one tab."""

    person: Person
    session_key: str
    _task: asyncio.Task[None] | None = None
    _wanted: Subscribe | None = None
    _subscription: Subscription | None = None
    _offered: Snapshot | None = None
    _late = False
    """True if the page was notified that updates are late."""

    async def connect(self) -> None:
        """Accept persons with a role; close other connections with a code that prevents retries."""
        await self.accept()
        user = self.scope.get("user")
        person = await database_sync_to_async(person_of)(user)
        if person is None:
            await self.close(code=FORBIDDEN if user and user.is_authenticated else SIGNED_OUT)
            return
        self.person, self.session_key = person, self.scope["session"].session_key or ""
        self._hub, self._watch = _shared()
        self._ready = asyncio.Event()
        self._sent: dict[str, bytes] = {}
        self._task = asyncio.create_task(self._follow())
        self._watch.add(self)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Serve the connection and stop the tab's updates at its end, also when sending fails."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._stop()

    async def _stop(self) -> None:
        if self._task is None:
            return
        await cancelled(self._task)
        await self._watch.discard(self)
        await self._leave()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Change the tab's subscription."""
        if self._task is None:
            return
        try:
            if text_data is None or bytes_data or len(text_data) > MAX_MESSAGE:
                raise ValueError("no such message")
            wanted = Subscribe.model_validate_json(text_data)
            subscription = _subscription(wanted, self.person)
        except (ValidationError, ValueError):
            await self.close(code=4400)
            return
        await self._leave()
        await self.send(text_data=json.dumps({"type": "ready"}))
        self._wanted, self._subscription, self._sent = wanted, subscription, {}
        self._hub.show(self, subscription)

    async def _leave(self) -> None:
        subscription, self._subscription, self._offered = self._subscription, None, None
        if subscription is not None:
            await self._hub.leave(self, subscription)

    def offer(self, newest: Snapshot) -> None:
        """Schedule sending of a snapshot's changes; a newer snapshot replaces it."""
        self._offered = newest
        self._ready.set()

    async def end(self, code: int) -> None:
        """Stop the updates and close the connection."""
        if self._task is not None:
            self._task.cancel()
        await self.close(code=code)

    async def report_trouble(self) -> None:
        """Notify the page once that updates are late."""
        if not self._late and self._wanted is not None:
            self._late = True
            await self.send(text_data=json.dumps({"type": "late"}))

    async def _follow(self) -> None:
        while True:
            await self._ready.wait()
            self._ready.clear()
            if self._late and not self._watch.failing:
                self._late = False
                await self.send(text_data=json.dumps({"type": "ready"}))
            snapshot, wanted = self._offered, self._wanted
            if snapshot is not None and wanted is not None:
                await self._send(snapshot, wanted)

    async def _send(self, snapshot: Snapshot, wanted: Subscribe) -> None:
        html = {}
        for region, text in snapshot.html.items():
            digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
            if self._sent.get(region) != digest:
                self._sent[region] = digest
                html[region] = text
        message: dict[str, Any] = {
            "type": "update",
            "seq": snapshot.seq,
            "identity": snapshot.identity,
            "html": html,
        }
        again = bool(wanted.identity) and wanted.identity != snapshot.identity
        steps = _new_steps(snapshot, wanted, again=again)
        points = _new_points(snapshot, wanted, again=again)
        if steps is not None:
            message["steps"] = steps
        if points is not None:
            message["points"] = points
        # A snapshot may show events later than its ``seq``; the next one repeats them with the right ``seq``.
        is_later = snapshot.seq > wanted.after
        wanted.identity, wanted.steps, wanted.after = snapshot.identity, len(snapshot.steps), snapshot.seq
        if html or steps or points or is_later:
            await self.send(text_data=json.dumps(message))


def _new_steps(snapshot: Snapshot, wanted: Subscribe, *, again: bool) -> dict[str, Any] | None:
    """Return the steps that a tab lacks; all steps if the trajectory was restarted."""
    start = 0 if again or wanted.steps > len(snapshot.steps) else wanted.steps
    missing = snapshot.steps[start:]
    if not missing and not (again and wanted.steps):
        return None
    return {"start": start, "html": list(missing)}


def _new_points(snapshot: Snapshot, wanted: Subscribe, *, again: bool) -> dict[str, Any] | None:
    """Return the chart points that a tab lacks; all points if they cannot be appended."""
    if snapshot.charts is None or wanted.point is None:
        return None
    x, columns = snapshot.charts["x"], snapshot.charts["columns"]
    last = x[-1] if x else -1.0
    same = set(wanted.series) == set(columns)
    if again or not same or last < wanted.point:
        wanted.point, wanted.series = last, list(columns)
        return {"reset": snapshot.charts}
    start = next((i for i, value in enumerate(x) if value > wanted.point), len(x))
    if start == len(x):
        return None
    wanted.point = last
    return {"x": x[start:], "columns": {key: column[start:] for key, column in columns.items()}}


def _subscription(wanted: Subscribe, person: Person) -> Subscription:
    """Parse a subscription. Raises ValueError for an unknown page or a malformed target."""
    length = TARGET_LENGTHS.get(wanted.page, 0)
    if wanted.page not in PAGES or len(wanted.target) != length:
        raise ValueError("no such page")
    numbers = wanted.target[1:2] + wanted.target[3:4]
    if not all(text.isdecimal() and len(text) < 10 for text in numbers):
        raise ValueError("iterations and indexes are numbers")
    if any("\x00" in text for text in wanted.target):
        raise ValueError("names have no NUL")
    params = {key: value.replace("\x00", "") for key, value in parse_qsl(wanted.query.lstrip("?"))}
    role = Role.VIEWER if wanted.page in SAME_FOR_ALL else person.role
    user_id = person.user.pk if wanted.page in OWNED and role is Role.OPERATOR else None
    return Subscription(
        wanted.page, wanted.run, tuple(wanted.target), tuple(sorted(params.items())), role, user_id
    )


def _shared() -> tuple[Hub, Watch]:
    """Return the hub and the watch of this event loop (tests use several loops)."""
    loop = asyncio.get_running_loop()
    if loop not in _SHARED:
        for closed in [known for known in _SHARED if known.is_closed()]:
            del _SHARED[closed]
        hub = Hub()
        _SHARED[loop] = (hub, Watch(hub))
    return _SHARED[loop]
