"""Tabs that show the same share one rendering per change, and only changes that a page shows cost one."""

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

from tests.builders.page_builders import Yard
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
    """Renderings by page; the watch is silent and nothing is too old, so that messages alone cause them."""
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
    """Tabs that have got their first update, one after the other."""
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(count):
            opened.append(await stack.enter_async_context(tab(client, **subscribe)))
            await opened[-1].receive()
        yield opened


def of_live_rollout(yard: Yard, index: int = 0) -> dict[str, Any]:
    target = ["train", str(yard.iterations), yard.tasks[0].key, str(index)]
    return {"page": "trajectory", "run": yard.run.pk, "target": target}


async def test_tabs_that_show_the_same_cost_one_rendering_per_change(rendered: Counter[str]) -> None:
    yard, client = await in_thread(populated)()
    async with tabs(client, 5, **of_live_rollout(yard)) as opened:
        assert rendered["trajectory"] == 1, "tabs that come later are shown what is there"
        await in_thread(add_and_post)(yard, 1)
        for one in opened:
            await one.until(yard.run.last_seq)
            assert len(one.steps) == 2
        assert rendered["trajectory"] == 2


async def test_changes_during_a_rendering_become_one_update_of_every_tab(
    rendered: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    yard, client = await in_thread(populated)()
    posted = threading.Event()

    def held(subscription: Subscription, shared: SharedReads) -> Snapshot:
        posted.wait()
        rendered[subscription.page] += 1
        return snapshot(subscription, shared)

    def burst() -> None:
        for index in range(1, 21):
            add_and_post(yard, index)

    async with tabs(client, 4, **of_live_rollout(yard)) as opened:
        monkeypatch.setattr(hub, "snapshot", held)
        await in_thread(burst)()
        pages, _ = consumer._SHARED[asyncio.get_running_loop()]
        while pages.heard.get((run_group(yard.run.pk), yard.run.pk), 0) < yard.run.last_seq:
            await asyncio.sleep(0.01)
        posted.set()
        for one in opened:
            await one.until(yard.run.last_seq)
            assert len(one.steps) == 21
        assert rendered["trajectory"] <= 3, "the first one, that of the first change, that of the others"


async def test_a_step_costs_no_rendering_of_pages_that_do_not_show_it(rendered: Counter[str]) -> None:
    yard, client = await in_thread(populated)()
    run = yard.run.pk
    async with (
        tabs(client, 1, page="run", run=run),
        tabs(client, 1, page="overview"),
        tabs(client, 1, page="iteration", run=run, target=["train", "0"]),
        tabs(client, 1, **of_live_rollout(yard)) as opened,
    ):
        await in_thread(add_and_post)(yard, 1)
        await opened[0].until(yard.run.last_seq)
        assert rendered == {"run": 1, "overview": 1, "iteration": 1, "trajectory": 2}


async def test_the_content_of_a_tab_is_made_once_for_all_roles_and_ways_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    yard, _ = await in_thread(populated)()
    made: list[str] = []

    def counted(run: Run, tab: str, params: Mapping[str, str], role: Role) -> Panel:
        made.append(tab)
        return build_panel(run, tab, params, role)

    shown = [
        Subscription("run", yard.run.pk, (), query, role)
        for query in ((), (("tab", "groups"),), (("tab", "trajectories"),), (("tab", "log"),))
        for role in (Role.VIEWER, Role.OPERATOR)
    ]
    alone = [await in_thread(snapshot)(one, SharedReads()) for one in shown]
    monkeypatch.setattr(runs, "build_panel", counted)
    shared = SharedReads()
    assert [await in_thread(snapshot)(one, shared) for one in shown] == alone
    assert Counter(made) == {"groups": 1, "trajectories": 1, "log": 2}


async def test_a_message_after_a_lost_one_is_taken_for_a_change_of_everything(
    rendered: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    yard, client = await in_thread(populated)()
    async with tabs(client, 1, **of_live_rollout(yard)) as opened:
        await in_thread(add_and_post)(yard, 1)
        await opened[0].until(yard.run.last_seq)
        with monkeypatch.context() as patch:
            patch.setattr(notifications, "_send", lambda *_: None)
            await in_thread(add_and_post)(yard, 2)

        def other() -> None:
            yard.stream.step(yard.ref(yard.iterations, 1, 0), 0)
            yard.post()

        await in_thread(other)()
        await opened[0].until(yard.run.last_seq)
        assert len(opened[0].steps) == 3
    assert rendered["trajectory"] == 3


async def test_a_later_tab_is_shown_anew_what_is_too_old(
    rendered: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    yard, client = await in_thread(populated)()
    run = yard.run
    async with tabs(client, 1, page="run", run=run.pk) as before:
        assert "silent since" not in before[0].regions["run-header"]
        await in_thread(Run.objects.update)(heartbeat_at=timezone.now() - timedelta(hours=1))
        monkeypatch.setattr(hub, "FRESH_S", 0.0)
        async with tabs(client, 1, page="run", run=run.pk) as later:
            await shows(later[0], "silent since")
        await shows(before[0], "silent since")
    assert rendered["run"] == 2


async def shows(tab: Tab, text: str) -> None:
    """Receive until the header of the run has a text."""
    while text not in tab.regions["run-header"]:
        await tab.receive()


async def test_a_message_to_one_group_hides_no_lost_one_to_another() -> None:
    pages = Hub()
    run, runs = (LivePage(Subscription(page, number, (), (), Role.VIEWER)) for page, number in PAGES)
    pages.pages = {page.subscription: page for page in (run, runs)}
    step: dict[str, Any] = {"areas": ["steps"], "groups": [], "rollouts": []}
    for group, seq in (("run.1", 4), ("runs", 4), ("runs", 5), ("run.1", 6)):
        message = {"group": group, "run_id": 1, "seq": seq, "changes": {"after": seq - 1, **step}}
        pages._heard(message)
        assert run.changed.is_set() == (seq == 6)
    assert not runs.changed.is_set()


async def test_a_tab_that_comes_while_the_last_one_leaves_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    leaving, stopped = asyncio.Event(), asyncio.Event()

    async def look(_: Watch) -> None:
        try:
            leaving.set()
            await asyncio.sleep(600)
        finally:
            await stopped.wait()

    monkeypatch.setattr(watch, "CHECK_S", 0.0)
    monkeypatch.setattr(Watch, "_look", look)
    watching, first, second = Watch(Hub()), LiveConsumer(), LiveConsumer()
    watching.add(first)
    await leaving.wait()
    leaves = asyncio.create_task(watching.discard(first))
    await asyncio.sleep(0)
    leaving.clear()
    watching.add(second)
    stopped.set()
    await leaves
    await leaving.wait()
    await watching.discard(second)


async def test_a_tab_that_cannot_be_sent_to_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise OSError("the client is gone")

    yard, client = await in_thread(populated)()
    async with tabs(client, 1, page="run", run=yard.run.pk) as (opened,):
        monkeypatch.setattr(LiveConsumer, "_send", fail)
        await in_thread(add_and_post)(yard, 1)
        await in_thread(notifications._send)({"type": "run.changed"}, run_group(yard.run.pk))
        pages, _ = consumer._SHARED[asyncio.get_running_loop()]
        (page,) = pages.pages.values()
        (one,) = page.tabs
        assert isinstance(one, LiveConsumer)
        assert one._task is not None
        await asyncio.wait([one._task])
        await opened.socket.close()
        assert pages.pages == {}


def test_renderings_leave_a_busy_machine_to_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "SHARE", 0.5)
    monkeypatch.setattr(hub, "BUSY_SHARE", 0.04)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4))
    monkeypatch.setattr(os, "getloadavg", lambda: (3.5, 0.0, 0.0))
    assert hub._share() == hub.SHARE
    monkeypatch.setattr(os, "getloadavg", lambda: (4.5, 0.0, 0.0))
    assert hub._share() == 4 * hub.BUSY_SHARE < hub.SHARE
