"""Tabs that show the same share one rendering per change, and only changes that a page shows cost one."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from django.test import Client

from tests.builders.page_builders import Yard
from tests.builders.web_builders import make_user
from tests.unit.webapp.live.live_tabs import Tab, add_and_post, in_thread, populated, tab
from webapp.contexts.run.runs import RunSummary, build_summary
from webapp.live import fragments, hub, watch
from webapp.live.fragments import SharedReads, Snapshot, Subscription, snapshot
from webapp.models import Run
from webapp.permissions import Role
from webapp.services import notifications

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis_server")]


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Renderings by page; the watch is silent, so that messages alone cause them."""
    counts: Counter[str] = Counter()

    def counted(subscription: Subscription, shared: SharedReads) -> Snapshot:
        counts[subscription.page] += 1
        return snapshot(subscription, shared)

    monkeypatch.setattr(hub, "snapshot", counted)
    monkeypatch.setattr(watch, "CHECK_S", 600.0)
    return counts


@asynccontextmanager
async def tabs(client: Client, count: int, **subscribe: Any) -> AsyncIterator[list[Tab]]:
    """Tabs that have got their first update."""
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(tab(client, **subscribe)) for _ in range(count)]
        for one in opened:
            await one.receive()
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


async def test_the_last_event_of_a_burst_reaches_every_tab(rendered: Counter[str]) -> None:
    yard, client = await in_thread(populated)()
    async with tabs(client, 4, **of_live_rollout(yard)) as opened:

        def burst() -> None:
            for index in range(1, 21):
                add_and_post(yard, index)

        await in_thread(burst)()
        for one in opened:
            await one.until(yard.run.last_seq)
            assert len(one.steps) == 21
        assert rendered["trajectory"] < 20


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


async def test_tabs_of_a_run_read_what_is_above_them_once_per_change(
    rendered: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    yard, client = await in_thread(populated)()
    run, reads = yard.run.pk, []

    def counted(run: Run) -> RunSummary:
        reads.append(run.last_seq)
        return build_summary(run)

    def start() -> None:
        yard.stream.add("trajectory_started", ref=yard.ref(yard.iterations, 1, 0))
        yard.post()

    monkeypatch.setattr(fragments, "build_summary", counted)
    async with (
        tabs(client, 1, page="run", run=run) as groups,
        tabs(client, 1, page="run", run=run, query="?tab=trajectories") as trajectories,
    ):
        await in_thread(start)()
        for one in (*groups, *trajectories):
            await one.until(yard.run.last_seq)
            assert "2 live" in one.regions["run-header"]
    assert rendered["run"] == 4
    assert reads.count(yard.run.last_seq) == 1


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


def test_renderings_leave_a_busy_machine_to_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4))
    monkeypatch.setattr(os, "getloadavg", lambda: (3.5, 0.0, 0.0))
    assert hub._share() == hub.SHARE
    monkeypatch.setattr(os, "getloadavg", lambda: (4.5, 0.0, 0.0))
    assert hub._share() == 4 * hub.BUSY_SHARE < hub.SHARE


async def test_a_viewer_beside_an_operator_gets_no_controls_and_no_answers() -> None:
    yard, operator = await in_thread(populated)()
    viewer = Client(HTTP_HOST="localhost")
    await in_thread(viewer.force_login)(await in_thread(make_user)("vi", Role.VIEWER))
    ended = {"page": "trajectory", "run": yard.run.pk, "target": ["train", "0", yard.tasks[0].key, "0"]}
    async with (
        tabs(operator, 2, page="run", run=yard.run.pk) as controlling,
        tabs(viewer, 2, page="run", run=yard.run.pk) as watching,
        tabs(operator, 1, **ended) as answered,
        tabs(viewer, 1, **ended) as asking,
    ):
        assert all("formaction" in one.regions["run-header"] for one in controlling)
        assert not any("formaction" in one.regions["run-header"] for one in watching)
        assert "# gold" in answered[0].regions["trajectory-outcome"]
        assert "# gold" not in asking[0].regions["trajectory-outcome"]
