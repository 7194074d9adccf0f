"""Periodic check of this process's tabs for ended sessions and for changes whose message was lost.

Every ``CHECK_S`` one check for all tabs reads the persons of their sessions and the progress of the shown
runs, and probes Redis. Tabs whose session ended or whose role changed are closed. A page is rendered again if
its run fell silent or made progress without a message, so that a message lost while Redis was down delays
the update by seconds only. A failure is logged once and shown by every tab until it is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Protocol

from channels.db import database_sync_to_async
from channels.layers import get_channel_layer
from django.contrib.auth import HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db.models import Count, Max
from django.utils import timezone
from django.utils.crypto import constant_time_compare

from webapp.core.permissions import Person, person_of
from webapp.live.hub import Hub, LivePage, Mark, cancelled, each
from webapp.runs.models.runs import Run
from webapp.runs.selectors.runs import ACTIVE_STATES, is_stale

CHECK_S = 2.0
TIMEOUT_S = 30.0
"""Timeout of a check, seconds; a slower check counts as failed."""
PING_GROUP = "ping"
SIGNED_OUT = 4401
"""Close code: the session has ended; the page does not reconnect."""
FORBIDDEN = 4403
"""Close code: no role, or not the role the page was rendered for; the page does not reconnect."""

log = logging.getLogger(__name__)


class WatchedTab(Protocol):
    """Interface of a tab to the watch."""

    session_key: str
    person: Person

    async def report_trouble(self) -> None:
        """Notify the page that updates are late."""

    async def end(self, code: int) -> None:
        """Stop the updates and close the connection."""


class Watch:
    """Periodic check of the tabs of one event loop and of the pages they show."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._tabs: set[WatchedTab] = set()
        self._task: asyncio.Task[None] | None = None
        self.failing = False
        """True if the last check failed."""

    def add(self, tab: WatchedTab) -> None:
        """Add a tab to the checks."""
        self._tabs.add(tab)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._follow())

    async def discard(self, tab: WatchedTab) -> None:
        """Remove a tab; the checks end with the last one."""
        self._tabs.discard(tab)
        if not self._tabs:
            task, self._task = self._task, None  # a tab added meanwhile starts a new task
            await cancelled(task)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    await self._look()
                    await _ping()
            except Exception as error:
                await self._failed(error)
            else:
                self._succeeded()

    async def _failed(self, error: Exception) -> None:
        if not self.failing:
            log.warning("live updates are late: %s: %s", type(error).__name__, error)
        self.failing = True
        await each(tab.report_trouble() for tab in list(self._tabs))

    def _succeeded(self) -> None:
        if not self.failing:
            return
        log.warning("live updates are in time again")
        self.failing = False
        self._hub.notice_all()

    async def _look(self) -> None:
        tabs, pages = list(self._tabs), list(self._hub.pages.values())
        people, marks = await database_sync_to_async(_read)(
            {tab.session_key for tab in tabs}, {page.subscription.run_id for page in pages}
        )
        for page in pages:
            self._compare(page, marks.get(page.subscription.run_id))
        ended = [tab for tab in tabs if not _is_same(people.get(tab.session_key), tab.person)]
        self._tabs.difference_update(ended)
        await each(tab.end(FORBIDDEN if tab.session_key in people else SIGNED_OUT) for tab in ended)

    def _compare(self, page: LivePage, mark: Mark | None) -> None:
        """Render a page again if its run changed without a message."""
        before, page.mark = page.mark, mark
        if before == mark:
            return
        known = before is not None and mark is not None and before[:2] == mark[:2]
        events = mark[2] if mark is not None else ()
        if not known or any(self._hub.heard.get((page.group, run), 0) < seq for run, seq in events):
            self._hub.notice(page)


def _is_same(person: Person | None, before: Person) -> bool:
    return person is not None and (person.user.pk, person.role) == (before.user.pk, before.role)


async def _ping() -> None:
    layer = get_channel_layer()
    if layer is not None:
        await layer.group_send(PING_GROUP, {"type": "ping"})


def _read(
    session_keys: set[str], runs: set[int | None]
) -> tuple[dict[str, Person | None], dict[int | None, Mark]]:
    return people_of(session_keys), _marks(runs)


def people_of(session_keys: Iterable[str]) -> dict[str, Person | None]:
    """Return the person of each session that has not ended; None for users without a role."""
    stored = Session.objects.filter(pk__in=list(session_keys), expire_date__gt=timezone.now())
    sessions = {session.pk: session.get_decoded() for session in stored}
    ids = {data[SESSION_KEY] for data in sessions.values() if SESSION_KEY in data}
    users = {str(user.pk): user for user in User.objects.filter(pk__in=ids).prefetch_related("groups")}
    people = {}
    for key, data in sessions.items():
        user = users.get(data.get(SESSION_KEY, ""))
        signature = data.get(HASH_SESSION_KEY, "")
        # A session of an earlier password has another hash and counts as ended.
        if user is not None and constant_time_compare(signature, user.get_session_auth_hash()):
            people[key] = person_of(user)
    return people


def _marks(runs: set[int | None]) -> dict[int | None, Mark]:
    rows = Run.objects.order_by("pk").only("state", "epoch", "last_seq", "heartbeat_at", "running_at")
    marks: dict[int | None, Mark] = {
        run.pk: ((run.state, run.epoch), is_stale(run), ((run.pk, run.last_seq),))
        for run in rows.filter(pk__in=[run for run in runs if run])
    }
    if None in runs:
        totals = Run.objects.aggregate(count=Count("pk"), changed=Max("state_changed_at"))
        live = list(rows.filter(state__in=ACTIVE_STATES))
        silent = frozenset(run.pk for run in live if is_stale(run))
        events = tuple((run.pk, run.last_seq) for run in live)
        marks[None] = ((totals["count"], totals["changed"]), silent, events)
    return marks
