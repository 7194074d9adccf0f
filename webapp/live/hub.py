"""Pages shown by the tabs of this process: each is rendered once per change, for all of its tabs.

    Redis ─▶ one membership per group ─▶ pages that the change affects ─▶ one rendering each ─▶ their tabs

Changes are combined: a page is rendered at most four times a second and takes at most a fifth of a core, all
pages together at most half of one, or 4 % of a machine that is busy (in CPU time: waiting is not
counted), so that tabs do not slow a run down. Whatever arrives while a page is rendered or rests leads to one
more rendering, so that the last change always arrives. A message that does not follow the one before is taken
for a change of everything. A page that cannot be rendered (the database is down) is logged, reported to its
tabs and tried again.
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
"""Least time between two renderings of a page."""
AT_ONCE = 2
"""Number of renderings at once: one that waits for the database does not keep the others waiting."""
PAGE_SHARE = 0.2
"""Largest share of a core for the renderings of one page."""
SHARE = 0.5
"""Largest share of a core for all renderings."""
BUSY_SHARE = 0.04
"""Largest share of the machine for all renderings while its load exceeds its cores, e.g. by a run on it."""
RETRY_MAX_S = 10.0
FRESH_S = 2.0
"""Age up to which a new tab is shown what others were: pages also tell for how long a run has been silent."""
MAX_KEPT = 64
"""Number of pages whose last snapshot is kept for tabs that come later."""

log = logging.getLogger(__name__)
Mark = tuple[Any, Any, tuple[tuple[int, int], ...]]
"""State that pages show, silence of runs, and the last event of each run among them."""


class Tab(Protocol):
    """Interface of a tab to the hub."""

    def offer(self, found: Snapshot) -> None:
        """Send what the tab lacks of a snapshot, soon."""

    async def report_trouble(self) -> None:
        """Notify the page that updates are late."""


class LivePage:
    """A page that tabs show."""

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
        """Return the Channels group of its changes."""
        run = self.subscription.run_id
        return RUNS_GROUP if run is None else run_group(run)


class Hub:
    """Pages of one event loop."""

    def __init__(self) -> None:
        self.pages: dict[Subscription, LivePage] = {}
        self.heard: dict[tuple[str, int], int] = {}
        """Last event that a message to a group reported of a run."""
        self._kept: OrderedDict[Subscription, Snapshot] = OrderedDict()
        self._shared: dict[str, SharedReads] = {}
        """Reads since the last change, by the group that tells of changes."""
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._joining = asyncio.Lock()
        self._groups: set[str] = set()
        """Channels groups that ``_channel`` is a member of."""
        self._channel = ""
        self._listener: asyncio.Task[None] | None = None

    def show(self, tab: Tab, subscription: Subscription) -> None:
        """Let a tab follow a page: it is offered the current snapshot and those to come."""
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
        """End what ``show`` began; a page without tabs is not rendered any more."""
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
        """Render a page anew, from what is stored now."""
        self._shared.pop(page.group, None)
        page.changed.set()

    def notice_all(self) -> None:
        """Render every page anew, after messages may have been lost."""
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
        with contextlib.suppress(RedisError, OSError):  # the watch reports it and finds the changes
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
            found, cpu = rendered
            self._keep(page.subscription, found)
            for tab in page.tabs:
                tab.offer(found)
            await _rest(began, AT_ONCE * cpu / _share())
        return cpu

    def _keep(self, subscription: Subscription, found: Snapshot) -> None:
        self._kept[subscription] = found
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
        async with self._joining:  # a page that comes meanwhile joins after the group was left
            needed = any(page.group == group for page in self.pages.values())
            if layer is None or needed or group not in self._groups:
                return
            self._groups.discard(group)
            self._shared.pop(group, None)
            with contextlib.suppress(RedisError, OSError):  # Redis is down, and the membership expires there
                await layer.group_discard(group, self._channel)

    async def _listen(self, layer: Any, channel: str) -> None:
        while True:
            self._heard(await layer.receive(channel))

    def _heard(self, message: Mapping[str, Any]) -> None:
        group, run, changes = message["group"], message.get("run_id"), message.get("changes")
        if run is not None:
            heard = self.heard.get((group, run))
            if changes is not None and heard is not None and changes["after"] > heard:
                changes = None
            self.heard[group, run] = max(heard or 0, message["seq"])
        self._shared.pop(group, None)
        for page in self.pages.values():
            if page.group == group and is_affected(page.subscription, changes):
                page.changed.set()


def _timed(subscription: Subscription, shared: SharedReads) -> tuple[Snapshot, float]:
    """Return a snapshot and the CPU time that it took, s."""
    began = time.thread_time()
    return snapshot(subscription, shared), time.thread_time() - began


async def cancelled(task: asyncio.Task[None] | None) -> None:
    """Cancel a task and wait for its end, also of one that has failed already."""
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _share() -> float:
    """Return the largest share of a core for all renderings at this time."""
    cores = len(os.sched_getaffinity(0))
    return min(SHARE, BUSY_SHARE * cores) if os.getloadavg()[0] > cores else SHARE


async def _rest(began: float, least: float) -> None:
    """Wait until ``least`` seconds have passed since ``began``."""
    await asyncio.sleep(max(0.0, began + least - time.monotonic()))


async def each(calls: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Await calls of tabs at once, so that a slow one delays no other; a tab's socket may be closing."""
    await asyncio.gather(*calls, return_exceptions=True)
