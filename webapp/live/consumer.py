"""WebSocket of a browser tab, which sends the changes of the page it shows.

The tab sends the page it shows and the data it already has; changes are combined (at most ten updates a
second, fewer when rendering is slow) and only regions that differ from the tab's are sent. A tab needs memory
for one digest per region, regardless of the run's size. An update that fails (the database is down) is
logged, shown by the page and retried until it succeeds; ``webapp.live.watch`` handles ended sessions and lost
messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import time
from typing import Any
from urllib.parse import parse_qsl

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from redis.exceptions import RedisError

from webapp.live.fragments import PAGES, TARGET_LENGTHS, GoneError, Snapshot, Subscription
from webapp.live.snapshots import SnapshotCache
from webapp.live.watch import FORBIDDEN, SIGNED_OUT, Mark, Watch
from webapp.services.notifications import RUNS_GROUP, run_group
from webapp.views.access import Person, person_of

INTERVAL_S = 0.1
"""Least time between two updates of a tab."""
RETRY_MAX_S = 10.0
MAX_MESSAGE = 8192
_SHARED: dict[asyncio.AbstractEventLoop, tuple[SnapshotCache, Watch]] = {}

log = logging.getLogger(__name__)


class Subscribe(BaseModel):
    """Message of a tab, sent at connection and whenever it shows a different page."""

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
    run: int | None = None
    mark: Mark | None = None
    _task: asyncio.Task[None] | None = None
    _group: str = ""
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
        self._cache, self._watch = _shared()
        self._changed = asyncio.Event()
        self._changed_at = 0.0
        self._wanted: Subscribe | None = None
        self._subscription: Subscription | None = None
        self._sent: dict[str, bytes] = {}
        self._task = asyncio.create_task(self._follow())
        self._watch.add(self)

    async def disconnect(self, code: int) -> None:  # noqa: ARG002
        """Stop the updates of the tab."""
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
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
        self._wanted, self._subscription, self._sent = wanted, subscription, {}
        self.run, self.mark = wanted.run, None
        await self.send(text_data=json.dumps({"type": "ready"}))
        self.notice()

    async def _join(self, group: str) -> None:
        if group == self._group:
            return
        await self._leave()
        await self.channel_layer.group_add(group, self.channel_name)
        self._group = group

    async def _leave(self) -> None:
        group, self._group = self._group, ""
        if group:
            with contextlib.suppress(RedisError, OSError):  # Redis is down, and the membership expires there
                await self.channel_layer.group_discard(group, self.channel_name)

    async def run_changed(self, event: dict[str, Any]) -> None:  # noqa: ARG002
        """Schedule an update for a changed run; frequent changes are combined."""
        self.notice()

    def notice(self) -> None:
        """Schedule an update."""
        self._changed_at = time.monotonic()
        self._changed.set()

    async def end(self, code: int) -> None:
        """Close the connection and send nothing more."""
        if self._task is not None:
            self._task.cancel()
        await self.close(code=code)

    async def report_trouble(self) -> None:
        """Notify the page once that updates are late."""
        if not self._late and self._wanted is not None:
            self._late = True
            await self.send(text_data=json.dumps({"type": "late"}))

    async def _follow(self) -> None:
        failures = 0
        while True:
            await self._changed.wait()
            self._changed.clear()
            pause = 0.0
            try:
                pause = 4 * await self._update()
                failures = 0
            except Exception as error:
                if not failures:
                    log.warning("a tab's update failed: %s: %s", type(error).__name__, error, exc_info=error)
                failures += 1
                await self.report_trouble()
                self._changed.set()
                pause = min(RETRY_MAX_S, 0.25 * 2**failures)
            await asyncio.sleep(max(INTERVAL_S, pause))

    async def _update(self) -> float:
        """Send the changes; return the rendering time, s."""
        subscription, wanted = self._subscription, self._wanted
        if subscription is None or wanted is None:
            return 0.0
        with contextlib.suppress(RedisError, OSError):  # the watch reports it and finds the changes
            await self._join(RUNS_GROUP if wanted.run is None else run_group(wanted.run))
        try:
            found, took = await self._cache.get(subscription, not_before=self._changed_at)
        except GoneError:
            return 0.0
        if self._late and not self._watch.failing:
            self._late = False
            await self.send(text_data=json.dumps({"type": "ready"}))
        if wanted is self._wanted:
            await self._send(found, wanted)
        return took

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
    """Return the steps that a tab lacks; all steps if the trajectory was restarted."""
    start = 0 if again or wanted.steps > len(found.steps) else wanted.steps
    missing = found.steps[start:]
    if not missing and not (again and wanted.steps):
        return None
    return {"start": start, "html": list(missing)}


def _new_points(found: Snapshot, wanted: Subscribe, *, again: bool) -> dict[str, Any] | None:
    """Return the chart points that a tab lacks; all points if they cannot be appended."""
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
    """Parse a subscription. Raises ValueError for an unknown page or a malformed target."""
    length = TARGET_LENGTHS.get(wanted.page, 0)
    if wanted.page not in PAGES or len(wanted.target) != length:
        raise ValueError("no such page")
    numbers = wanted.target[1:2] + wanted.target[3:4]
    if not all(text.isdecimal() and len(text) < 10 for text in numbers):
        raise ValueError("iterations and indexes are numbers")
    params = tuple(sorted(dict(parse_qsl(wanted.query.lstrip("?").replace("\x00", ""))).items()))
    return Subscription(wanted.page, wanted.run, tuple(wanted.target), params, person.role)


def _shared() -> tuple[SnapshotCache, Watch]:
    """Return the snapshot cache and the watch of this event loop (tests use several)."""
    loop = asyncio.get_running_loop()
    if loop not in _SHARED:
        for ended in [other for other in _SHARED if other.is_closed()]:
            del _SHARED[ended]
        _SHARED[loop] = (SnapshotCache(), Watch())
    return _SHARED[loop]
