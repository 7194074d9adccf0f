"""The one WebSocket of a tab: tells it what changed on the page it shows.

The tab says what it shows and what it already has; changes are merged (at most ten updates a second, fewer
when rendering is slow) and only regions that differ from what the tab has are sent. A tab costs one
digest per region: nothing grows with the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
from typing import Any
from urllib.parse import parse_qsl

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.contrib.auth.models import User
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from webapp.live.fragments import PAGES, TARGET_LENGTHS, GoneError, Snapshot, Subscription
from webapp.live.snapshots import SnapshotCache
from webapp.services.notifications import RUNS_GROUP, run_group
from webapp.views.access import Person, person_of

INTERVAL_S = 0.1
"""Least time between two updates of a tab."""
RECHECK_S = 30.0
"""How long a role is trusted before it is read again."""
MAX_MESSAGE = 8192
FORBIDDEN = 4403
"""Close code: no role (any more); the page does not try again."""
_CACHES: dict[asyncio.AbstractEventLoop, SnapshotCache] = {}


class Subscribe(BaseModel):
    """What a tab sends, on opening and whenever it shows something else."""

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
    """Serves one tab."""

    person: Person | None = None
    _group: str = ""

    async def connect(self) -> None:
        """Let people with a role in; others are told, so that their page stops asking."""
        await self.accept()
        self._checked = time.monotonic()
        self.person = await database_sync_to_async(person_of)(self.scope.get("user"))
        if self.person is None:
            await self.close(code=FORBIDDEN)
            return
        self._changed = asyncio.Event()
        self._changed_at = 0.0
        self._wanted: Subscribe | None = None
        self._subscription: Subscription | None = None
        self._sent: dict[str, bytes] = {}
        self._task = asyncio.create_task(self._follow())

    async def disconnect(self, code: int) -> None:  # noqa: ARG002
        """Stop following."""
        if self._group:
            await self.channel_layer.group_discard(self._group, self.channel_name)
        if self.person is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """A tab says what it shows."""
        if self.person is None:
            return
        try:
            if text_data is None or bytes_data or len(text_data) > MAX_MESSAGE:
                raise ValueError("no such message")
            wanted = Subscribe.model_validate_json(text_data)
            subscription = _subscription(wanted, self.person)
        except (ValidationError, ValueError):
            await self.close(code=4400)
            return
        await self._join(RUNS_GROUP if wanted.run is None else run_group(wanted.run))
        self._wanted, self._subscription, self._sent = wanted, subscription, {}
        await self.send(text_data=json.dumps({"type": "ready"}))
        self._notice()

    async def _join(self, group: str) -> None:
        if group == self._group:
            return
        if self._group:
            await self.channel_layer.group_discard(self._group, self.channel_name)
        self._group = group
        await self.channel_layer.group_add(group, self.channel_name)

    async def run_changed(self, event: dict[str, Any]) -> None:  # noqa: ARG002
        """A run changed: look when there is time; many changes are one look."""
        self._notice()

    def _notice(self) -> None:
        self._changed_at = time.monotonic()
        self._changed.set()

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            if not await self._still_allowed():
                await self.close(code=FORBIDDEN)
                return
            subscription, wanted = self._subscription, self._wanted
            if subscription is None or wanted is None:
                continue
            took = 0.0
            try:
                found, took = await _cache().get(subscription, not_before=self._changed_at)
            except GoneError:
                found = None
            if found is not None and wanted is self._wanted:
                await self._send(found, wanted)
            await asyncio.sleep(max(INTERVAL_S, 4 * took))

    async def _still_allowed(self) -> bool:
        """The person's role as it is now; a tab whose rights changed is closed."""
        if time.monotonic() - self._checked < RECHECK_S:
            return True
        self._checked = time.monotonic()
        assert self.person is not None
        fresh = await database_sync_to_async(_fresh_person)(self.person.user.pk)
        return fresh is not None and fresh.role is self.person.role

    async def _send(self, found: Snapshot, wanted: Subscribe) -> None:
        html = {}
        for region, text in found.html.items():
            digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
            if self._sent.get(region) != digest:
                self._sent[region] = digest
                html[region] = text
        message: dict[str, Any] = {
            "type": "update",
            "seq": found.seq,
            "identity": found.identity,
            "html": html,
        }
        again = bool(wanted.identity) and wanted.identity != found.identity
        steps = _new_steps(found, wanted, again=again)
        points = _new_points(found, wanted, again=again)
        if steps is not None:
            message["steps"] = steps
        if points is not None:
            message["points"] = points
        wanted.identity, wanted.steps = found.identity, len(found.steps)
        if html or steps or points:
            await self.send(text_data=json.dumps(message))


def _new_steps(found: Snapshot, wanted: Subscribe, *, again: bool) -> dict[str, Any] | None:
    """The steps a tab lacks; all of them when the trajectory was begun again."""
    start = 0 if again or wanted.steps > len(found.steps) else wanted.steps
    missing = found.steps[start:]
    if not missing and not (again and wanted.steps):
        return None
    return {"start": start, "html": list(missing)}


def _new_points(found: Snapshot, wanted: Subscribe, *, again: bool) -> dict[str, Any] | None:
    """The chart points a tab lacks; the whole set when it cannot simply be added to."""
    if found.charts is None or wanted.point is None:
        return None
    x, columns = found.charts["x"], found.charts["columns"]
    last = x[-1] if x else -1.0
    same = set(wanted.series) == set(columns)
    if again or not same or last < wanted.point:
        wanted.point, wanted.series = last, list(columns)
        return {"reset": found.charts}
    start = next((i for i, value in enumerate(x) if value > wanted.point), len(x))
    if start == len(x):
        return None
    wanted.point = last
    return {"x": x[start:], "columns": {key: column[start:] for key, column in columns.items()}}


def _subscription(wanted: Subscribe, person: Person) -> Subscription:
    """Raises ValueError for a page that does not exist or a target of the wrong form."""
    length = TARGET_LENGTHS.get(wanted.page, 0)
    if wanted.page not in PAGES or len(wanted.target) != length:
        raise ValueError("no such page")
    numbers = wanted.target[1:2] + wanted.target[3:4]
    if not all(text.isdecimal() and len(text) < 10 for text in numbers):
        raise ValueError("iterations and indexes are numbers")
    params = tuple(sorted(dict(parse_qsl(wanted.query.lstrip("?").replace("\x00", ""))).items()))
    return Subscription(wanted.page, wanted.run, tuple(wanted.target), params, person.role)


def _fresh_person(user_id: int) -> Person | None:
    return person_of(User.objects.filter(pk=user_id).first())


def _cache() -> SnapshotCache:
    """The snapshots of this event loop (tests use several)."""
    loop = asyncio.get_running_loop()
    if loop not in _CACHES:
        for ended in [other for other in _CACHES if other.is_closed()]:
            del _CACHES[ended]
        _CACHES[loop] = SnapshotCache()
    return _CACHES[loop]
