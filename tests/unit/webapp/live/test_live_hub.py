"""Live hub: tabs with equal content share one rendering per change that affects their page."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from tests.builders.web.page_builders import Yard
from tests.unit.webapp.live.live_tabs import Tab, add_and_post, in_thread, populated, tab
from webapp.core.permissions import Role
from webapp.core.services import notifications
from webapp.core.services.notifications import run_group
from webapp.live import consumer, hub, watch
from webapp.live.consumer import LiveConsumer
from webapp.live.fragments import SharedReads, Snapshot, Subscription, snapshot
from webapp.live.hub import Hub, LivePage
from webapp.live.watch import Watch
from webapp.models import Run
from webapp.runs.contexts import runs
from webapp.runs.contexts.tabs import Panel, build_panel

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis_server")]
PAGES = (("run", 1), ("runs", None))


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count renderings by page; polling and expiry are disabled, so only messages cause renderings."""
    counts: Counter[str] = Counter()

    def counted(subscription: Subscription, shared: SharedReads) -> Snapshot:
        counts[subscription.page] += 1
        return snapshot(subscription, shared)

    monkeypatch.setattr(hub, "snapshot", counted)
    monkeypatch.setattr(watch, "CHECK_S", 600.0)
    monkeypatch.setattr(hub, "FRESH_S", 600.0)
    return counts


@asynccontextmanager
async def tabs(client: Client, count: int, **subscribe: Any) -> AsyncIterator[list[Tab]]:
    """Open tabs one after the other, each with its first update received."""
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(count):
            opened.append(await stack.enter_async_context(tab(client, **subscribe)))
            await opened[-1].receive()
        yield opened


def live_rollout_page(yard: Yard, index: int = 0) -> dict[str, Any]:
    target = ["train", str(yard.iterations), yard.tasks[0].key, str(index)]
    return {"page": "trajectory", "run": yard.run.pk, "target": target}


async def test_tabs_with_equal_content_share_one_rendering_per_change(rendered: Counter[str]) -> None:
    yard, client = await in_thread(populated)()
    async with tabs(client, 5, **live_rollout_page(yard)) as opened:
        assert rendered["trajectory"] == 1, "tabs that come later are shown what is there"
        await in_thread(add_and_post)(yard, 1)
        for opened_tab in opened:
            await opened_tab.until(yard.run.last_seq)
            assert len(opened_tab.steps) == 2
        assert rendered["trajectory"] == 2


async def test_changes_during_a_rendering_are_merged_into_one_update(
    rendered: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    yard, client = await in_thread(populated)()
    posted = threading.Event()

    def blocked_snapshot(subscription: Subscription, shared: SharedReads) -> Snapshot:
        posted.wait()
        rendered[subscription.page] += 1
        return snapshot(subscription, shared)

    def burst() -> None:
        for index in range(1, 21):
            add_and_post(yard, index)

    async with tabs(client, 4, **live_rollout_page(yard)) as opened:
        monkeypatch.setattr(hub, "snapshot", blocked_snapshot)
        await in_thread(burst)()
        pages, _ = consumer._SHARED[asyncio.get_running_loop()]
        while pages.heard.get((run_group(yard.run.pk), yard.run.pk), 0) < yard.run.last_seq:
            await asyncio.sleep(0.01)
        posted.set()
        for opened_tab in opened:
            await opened_tab.until(yard.run.last_seq)
            assert len(opened_tab.steps) == 21
        assert rendered["trajectory"] <= 3, "the first one, that of the first change, that of the others"


async def test_step_causes_no_rendering_of_pages_that_do_not_show_it(rendered: Counter[str]) -> None:
    yard, client = await in_thread(populated)()
    run = yard.run.pk
    async with (
        tabs(client, 1, page="run", run=run),
        tabs(client, 1, page="overview"),
        tabs(client, 1, page="iteration", run=run, target=["train", "0"]),
        tabs(client, 1, **live_rollout_page(yard)) as opened,
    ):
        await in_thread(add_and_post)(yard, 1)
        await opened[0].until(yard.run.last_seq)
        assert rendered == {"run": 1, "overview": 1, "iteration": 1, "trajectory": 2}


async def test_panels_are_shared_between_roles_and_equal_queries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    yard, _ = await in_thread(populated)()
    built: list[str] = []

    def counted(run: Run, tab: str, params: Mapping[str, str], role: Role) -> Panel:
        built.append(tab)
        return build_panel(run, tab, params, role)

    subscriptions = [
        Subscription("run", yard.run.pk, (), query, role)
        for query in ((), (("tab", "groups"),), (("tab", "trajectories"),), (("tab", "log"),))
        for role in (Role.VIEWER, Role.OPERATOR)
    ]
    separate = [await in_thread(snapshot)(subscription, SharedReads()) for subscription in subscriptions]
    monkeypatch.setattr(runs, "build_panel", counted)
    shared = SharedReads()
    assert [await in_thread(snapshot)(subscription, shared) for subscription in subscriptions] == separate
    assert Counter(built) == {"groups": 1, "trajectories": 1, "log": 2}


async def test_message_after_a_lost_message_triggers_a_rendering(
    rendered: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    yard, client = await in_thread(populated)()
    async with tabs(client, 1, **live_rollout_page(yard)) as opened:
        await in_thread(add_and_post)(yard, 1)
        await opened[0].until(yard.run.last_seq)
        with monkeypatch.context() as patch:
            patch.setattr(notifications, "_send", lambda *_: None)
            await in_thread(add_and_post)(yard, 2)

        def add_step_elsewhere() -> None:
            yard.stream.step(yard.ref(yard.iterations, 1, 0), 0)
            yard.post()

        await in_thread(add_step_elsewhere)()
        await opened[0].until(yard.run.last_seq)
        assert len(opened[0].steps) == 3
    assert rendered["trajectory"] == 3


async def test_new_tab_triggers_a_rendering_of_stale_content(
    rendered: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    yard, client = await in_thread(populated)()
    run = yard.run
    async with tabs(client, 1, page="run", run=run.pk) as before:
        assert "no heartbeat since" not in before[0].regions["run-header"]
        await in_thread(Run.objects.update)(heartbeat_at=timezone.now() - timedelta(hours=1))
        monkeypatch.setattr(hub, "FRESH_S", 0.0)
        async with tabs(client, 1, page="run", run=run.pk) as later:
            await wait_for_header(later[0], "no heartbeat since")
        await wait_for_header(before[0], "no heartbeat since")
    assert rendered["run"] == 2


async def wait_for_header(tab: Tab, text: str) -> None:
    """Receive until the header of the run contains a text."""
    while text not in tab.regions["run-header"]:
        await tab.receive()


async def test_lost_messages_are_detected_separately_per_group() -> None:
    pages = Hub()
    run, runs = (LivePage(Subscription(page, number, (), (), Role.VIEWER)) for page, number in PAGES)
    pages.pages = {page.subscription: page for page in (run, runs)}
    step: dict[str, Any] = {"areas": ["steps"], "groups": [], "rollouts": []}
    for group, seq in (("run.1", 4), ("runs", 4), ("runs", 5), ("run.1", 6)):
        message = {"group": group, "run_id": 1, "seq": seq, "changes": {"after": seq - 1, **step}}
        pages._heard(message)
        assert run.changed.is_set() == (seq == 6)
    assert not runs.changed.is_set()


async def test_tab_added_while_the_last_tab_is_removed_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    looking, stopped = asyncio.Event(), asyncio.Event()

    async def look(_: Watch) -> None:
        try:
            looking.set()
            await asyncio.sleep(600)
        finally:
            await stopped.wait()

    monkeypatch.setattr(watch, "CHECK_S", 0.0)
    monkeypatch.setattr(Watch, "_look", look)
    watching, first, second = Watch(Hub()), LiveConsumer(), LiveConsumer()
    watching.add(first)
    await looking.wait()
    removal = asyncio.create_task(watching.discard(first))
    await asyncio.sleep(0)
    looking.clear()
    watching.add(second)
    stopped.set()
    await removal
    await looking.wait()
    await watching.discard(second)


async def test_tab_with_a_failed_send_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise OSError("the client is gone")

    yard, client = await in_thread(populated)()
    async with tabs(client, 1, page="run", run=yard.run.pk) as (opened,):
        monkeypatch.setattr(LiveConsumer, "_send", fail)
        await in_thread(add_and_post)(yard, 1)
        await in_thread(notifications._send)({"type": "run.changed"}, run_group(yard.run.pk))
        pages, _ = consumer._SHARED[asyncio.get_running_loop()]
        (page,) = pages.pages.values()
        (live_consumer,) = page.tabs
        assert isinstance(live_consumer, LiveConsumer)
        assert live_consumer._task is not None
        await asyncio.wait([live_consumer._task])
        await opened.socket.close()
        assert pages.pages == {}


def test_rendering_share_is_reduced_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "SHARE", 0.5)
    monkeypatch.setattr(hub, "BUSY_SHARE", 0.04)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4))
    monkeypatch.setattr(os, "getloadavg", lambda: (3.5, 0.0, 0.0))
    assert hub._share() == hub.SHARE
    monkeypatch.setattr(os, "getloadavg", lambda: (4.5, 0.0, 0.0))
    assert hub._share() == 4 * hub.BUSY_SHARE < hub.SHARE
