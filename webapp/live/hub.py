"""Pages shown by the tabs of this process: each is rendered once per change, for all of its tabs.

    Redis ─▶ one membership per group ─▶ pages affected by the change ─▶ one rendering each ─▶ their tabs

Changes are combined, so that tabs do not slow a run down. A page is rendered at most four times a second and
uses at most a fifth of a core. All pages together use at most half a core, or 4 % of a busy machine (CPU
time; waiting is not counted). Changes during a rendering, or during the pause after it, trigger another
rendering, so that the last change always arrives. A message that does not follow the previous one counts as
a change of every area. If a page cannot be rendered (the database is down), the error is logged and reported
to its tabs, and the rendering is repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, Protocol

from channels.db import database_sync_to_async
from channels.layers import get_channel_layer
from redis.exceptions import RedisError

from webapp.core.services.notifications import RUNS_GROUP, run_group
from webapp.live.fragments import (
    GoneError,
    SharedReads,
    Snapshot,
    Subscription,
    is_affected,
    snapshot,
)

INTERVAL_S = 0.25
"""Minimum time between two renderings of a page, seconds."""
AT_ONCE = 2
"""Number of concurrent renderings: a rendering that waits for the database does not block the next one."""
PAGE_SHARE = 0.2
"""Maximum share of a core for the renderings of one page."""
SHARE = 0.5
"""Maximum share of a core for all renderings."""
BUSY_SHARE = 0.04
"""Maximum share of the machine for all renderings while its load exceeds its cores, e.g. during a run."""
RETRY_MAX_S = 10.0
FRESH_S = 2.0
"""Age up to which a snapshot is shown to a new tab, seconds: pages also show for how long a run is silent."""
MAX_KEPT = 64
"""Maximum number of pages whose last snapshot is kept for later tabs."""

log = logging.getLogger(__name__)
Mark = tuple[Any, Any, tuple[tuple[int, int], ...]]
"""Run state shown by pages, silence of runs, and the last event of each run."""


class Tab(Protocol):
    """Interface of a tab to the hub."""

    def offer(self, newest: Snapshot) -> None:
        """Schedule sending of a snapshot's changes."""

    async def report_trouble(self) -> None:
        """Notify the page that updates are late."""


class LivePage:
    """Page that is shown by tabs."""

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.tabs: set[Tab] = set()
        self.changed = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.rendered_at = 0.0
        self.mark: Mark | None = None
        """State of the run at the last check for lost messages."""

    @property
    def group(self) -> str:
        """Return the Channels group of the page's changes."""
        run = self.subscription.run_id
        return RUNS_GROUP if run is None else run_group(run)


class Hub:
    """Pages of one event loop."""

    def __init__(self) -> None:
        self.pages: dict[Subscription, LivePage] = {}
        self.heard: dict[tuple[str, int], int] = {}
        """Last event of a run reported by a message to a group, by (group, run)."""
        self._kept: OrderedDict[Subscription, Snapshot] = OrderedDict()
        self._shared: dict[str, SharedReads] = {}
        """Query results since the last change, by the Channels group of the changes."""
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._joining = asyncio.Lock()
        self._groups: set[str] = set()
        """Channels groups that ``_channel`` is a member of."""
        self._channel = ""
        self._listener: asyncio.Task[None] | None = None

    def show(self, tab: Tab, subscription: Subscription) -> None:
        """Subscribe a tab to a page: offer it the current snapshot and all later ones."""
        page = self.pages.get(subscription)
        if page is None:
            page = self.pages[subscription] = LivePage(subscription)
            page.task = asyncio.create_task(self._follow(page))
        page.tabs.add(tab)
        kept = self._kept.get(subscription)
        if kept is not None:
            tab.offer(kept)
        if kept is None or time.monotonic() - page.rendered_at > FRESH_S:
            page.changed.set()

    async def leave(self, tab: Tab, subscription: Subscription) -> None:
        """End the subscription of a tab; a page without tabs is not rendered any more."""
        page = self.pages[subscription]
        page.tabs.discard(tab)
        if page.tabs:
            return
        del self.pages[subscription]
        self._kept.pop(subscription, None)
        await cancelled(page.task)
        await self._leave_group(page.group)
        if not self.pages:
            listener, self._listener = self._listener, None
            await cancelled(listener)

    def notice(self, page: LivePage) -> None:
        """Render a page again, without shared query results."""
        self._shared.pop(page.group, None)
        page.changed.set()

    def notice_all(self) -> None:
        """Render every page again, after messages may have been lost."""
        for page in self.pages.values():
            self.notice(page)

    async def _follow(self, page: LivePage) -> None:
        failures = 0
        while True:
            await page.changed.wait()
            page.changed.clear()
            began, least = time.monotonic(), INTERVAL_S
            try:
                least = max(INTERVAL_S, await self._update(page) / PAGE_SHARE)
                failures = 0
            except Exception as error:
                if not failures:
                    log.warning("a page's update failed: %s: %s", type(error).__name__, error, exc_info=error)
                failures += 1
                await each(tab.report_trouble() for tab in list(page.tabs))
                page.changed.set()
                began, least = time.monotonic(), min(RETRY_MAX_S, 0.25 * 2**failures)
            await _rest(began, least)

    async def _update(self, page: LivePage) -> float:
        """Render a page and offer it to its tabs; return the CPU time, s."""
        with contextlib.suppress(RedisError, OSError):  # the watch reports the error and detects changes
            await self._join_group(page.group)
        async with self._turns:
            page.changed.clear()
            began = time.monotonic()
            page.rendered_at = began
            shared = self._shared.get(page.group)
            if shared is None or began - shared.made_at > FRESH_S:
                shared = self._shared[page.group] = SharedReads()
            render = database_sync_to_async(_timed, thread_sensitive=False)
            try:
                rendered: tuple[Snapshot, float] = await render(page.subscription, shared)
            except GoneError:
                self._kept.pop(page.subscription, None)
                return 0.0
            newest, cpu = rendered
            self._keep(page.subscription, newest)
            for tab in page.tabs:
                tab.offer(newest)
            await _rest(began, AT_ONCE * cpu / _share())
        return cpu

    def _keep(self, subscription: Subscription, newest: Snapshot) -> None:
        self._kept[subscription] = newest
        self._kept.move_to_end(subscription)
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)

    async def _join_group(self, group: str) -> None:
        layer = get_channel_layer()
        async with self._joining:
            if layer is None:
                return
            if self._listener is None or self._listener.done():
                self._channel, self._groups = await layer.new_channel(), set()
                self._listener = asyncio.create_task(self._listen(layer, self._channel))
            if group in self._groups:
                return
            await layer.group_add(group, self._channel)
            self._groups.add(group)

    async def _leave_group(self, group: str) -> None:
        layer = get_channel_layer()
        async with self._joining:  # a page opened meanwhile joins again after the group was left
            needed = any(page.group == group for page in self.pages.values())
            if layer is None or needed or group not in self._groups:
                return
            self._groups.discard(group)
            self._shared.pop(group, None)
            with contextlib.suppress(RedisError, OSError):  # while Redis is down; the membership expires
                await layer.group_discard(group, self._channel)

    async def _listen(self, layer: Any, channel: str) -> None:
        while True:
            self._heard(await layer.receive(channel))

    def _heard(self, message: Mapping[str, Any]) -> None:
        group, run, changes = message["group"], message.get("run_id"), message.get("changes")
        if run is not None:
            heard = self.heard.get((group, run))
            # A message was lost before this one: any area may have changed.
            if changes is not None and heard is not None and changes["after"] > heard:
                changes = None
            self.heard[group, run] = max(heard or 0, message["seq"])
        self._shared.pop(group, None)
        for page in self.pages.values():
            if page.group == group and is_affected(page.subscription, changes):
                page.changed.set()


def _timed(subscription: Subscription, shared: SharedReads) -> tuple[Snapshot, float]:
    """Render a snapshot; return it and the CPU time, s."""
    began = time.thread_time()
    return snapshot(subscription, shared), time.thread_time() - began


async def cancelled(task: asyncio.Task[None] | None) -> None:
    """Cancel a task and wait for its end; errors of the task are ignored."""
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _share() -> float:
    """Return the current maximum share of a core for all renderings."""
    cores = len(os.sched_getaffinity(0))
    return min(SHARE, BUSY_SHARE * cores) if os.getloadavg()[0] > cores else SHARE


async def _rest(began: float, least: float) -> None:
    """Wait until ``least`` seconds have passed since ``began``."""
    await asyncio.sleep(max(0.0, began + least - time.monotonic()))


async def each(calls: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Await calls of tabs concurrently; errors are ignored, as a tab's socket may be closing."""
    await asyncio.gather(*calls, return_exceptions=True)
