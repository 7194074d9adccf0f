"""Live updates over WebSockets, Redis and Postgres: a page plus later fragments equals a fresh page."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db import connection
from django.test import Client
from django.utils import timezone

from tests.builders.web.html_regions import chart_data, inner_html, tight
from tests.builders.web.page_builders import Yard, add_iteration, add_live_step
from tests.builders.web.web_builders import make_user, signed_in
from tests.unit.webapp.live.live_tabs import Socket, add_and_post, fetch, in_thread, populated, tab
from webapp.accounts.services import accounts
from webapp.core.permissions import Role
from webapp.core.services import notifications
from webapp.core.services.notifications import run_group
from webapp.live import fragments
from webapp.live.fragments import (
    RUN_REGIONS,
    TRAJECTORY_REGIONS,
    Subscription,
    snapshot,
)
from webapp.live.watch import FORBIDDEN, SIGNED_OUT
from webapp.models import Run
from webapp.rollouts.contexts.trajectories import TrajectoryContext, build_trajectory
from webapp.rollouts.selectors import steps as step_reads
from webapp.rollouts.selectors.trajectories import get_trajectory
from webapp.rollouts.services import annotations as annotation_writes

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis_server")]


def finish_live_rollout(yard: Yard) -> None:
    """Finish the live rollout, its group, an iteration and an evaluation."""
    ref = yard.ref(yard.iterations, 0, 0)
    add_live_step(yard, yard.iterations, 1)
    yard.stream.finished(ref, steps=2)
    yard.stream.add(
        "group_finished", iteration=yard.iterations, phase="train", task_id=yard.tasks[0].key,
        members=[{"index": 0, "advantage": 0.0, "baseline": 1.0, "loss_mask": True}],
    )  # fmt: skip
    add_iteration(yard, yard.iterations + 1)
    yard.stream.add("alert", severity="error", code="collapse", message="reward fell")
    yard.post()


@pytest.mark.parametrize("query", ["", "?tab=trajectories"])
async def test_run_page_plus_fragments_equals_a_fresh_page(query: str) -> None:
    yard, client = await in_thread(populated)()
    address = f"/runs/{yard.run.pk}/{query}"
    page = await in_thread(fetch)(client, address)
    charts = chart_data(page)
    cursor = {"page": "run", "run": yard.run.pk, "after": yard.run.last_seq, "query": query}
    cursor |= {"identity": str(yard.run.epoch), "point": charts["x"][-1], "series": list(charts["columns"])}
    async with tab(client, **cursor) as opened:
        opened.charts = charts
        await opened.receive()
        assert set(opened.regions) == set(RUN_REGIONS)
        for region, html in opened.regions.items():
            assert tight(html) == tight(inner_html(page, region)), region
        await in_thread(finish_live_rollout)(yard)
        await opened.until(yard.run.last_seq)
        fresh = await in_thread(fetch)(client, address)
        for region in RUN_REGIONS:
            assert tight(opened.regions[region]) == tight(inner_html(fresh, region)), region
        assert opened.charts == chart_data(fresh)
        assert opened.charts["x"] == [0.0, 2.0]


async def test_trajectory_page_plus_fragments_equals_a_fresh_page() -> None:
    yard, client = await in_thread(populated)()
    target = ["train", str(yard.iterations), yard.tasks[0].key, "0"]
    address = f"/runs/{yard.run.pk}/{'/'.join(target)}/"
    page = await in_thread(fetch)(client, address)
    cursor = {"page": "trajectory", "run": yard.run.pk, "target": target, "steps": 1}
    async with tab(client, **cursor) as opened:
        opened.steps = [inner_html(page, "trajectory-steps")]
        await opened.receive()
        for count in range(1, 4):
            await in_thread(add_and_post)(yard, count)
            await opened.until(yard.run.last_seq)
        await in_thread(finish_at)(yard, 4)
        await opened.until(yard.run.last_seq)
        fresh = await in_thread(fetch)(client, address)
        for region in [*TRAJECTORY_REGIONS, "trajectory-strip"]:
            assert tight(opened.regions[region]) == tight(inner_html(fresh, region)), region
        assert tight("".join(opened.steps)) == tight(inner_html(fresh, "trajectory-steps"))
        sent = [step for update in opened.updates for step in update.get("steps", {}).get("html", [])]
        assert len(sent) == 3, "a step is sent once"


async def test_a_label_reaches_the_other_pages_of_its_rollout() -> None:
    yard, _ = await in_thread(populated)()
    target = ["train", str(yard.iterations), yard.tasks[0].key, "0"]
    author = await in_thread(make_user)("author", Role.OPERATOR)
    other = await in_thread(signed_in)(Role.OPERATOR, "other")
    row = await in_thread(get_trajectory)(
        yard.run.pk, phase="train", iteration=yard.iterations, task_key=target[2], index=0
    )
    async with tab(other, page="trajectory", run=yard.run.pk, target=target, steps=1) as opened:
        await opened.receive()
        await in_thread(annotation_writes.add)(trajectory=row, kind="label", text="odd", author=author)
        await opened.receive()
        assert "odd" in opened.regions["trajectory-annotations"]
        assert "Remove" not in opened.regions["trajectory-annotations"], "it is the author's"


def finish_at(yard: Yard, steps: int) -> None:
    yard.stream.finished(yard.ref(yard.iterations, 0, 0), steps=steps)
    yard.post()


async def test_other_pages_plus_fragments_equal_fresh_pages() -> None:
    yard, client = await in_thread(populated)()
    run, key, experiment = yard.run.pk, yard.tasks[0].key, str(yard.experiment.pk)
    pages: dict[str, tuple[str, str, dict[str, Any]]] = {
        "iteration": (f"/runs/{run}/train/1/", "iteration-body", {"run": run, "target": ["train", "1"]}),
        "group": (f"/runs/{run}/train/1/{key}/", "group-body", {"run": run, "target": ["train", "1", key]}),
        "overview": ("/", "overview-bands", {}),
        "runs": ("/runs/?sort=name", "run-list", {"query": "?sort=name"}),
        "experiment": (f"/experiments/{experiment}/", "experiment-outcome", {"target": [experiment]}),
    }
    async with AsyncExitStack() as stack:
        opened = {
            name: await stack.enter_async_context(tab(client, page=name, **cursor))
            for name, (_, _, cursor) in pages.items()
        }
        for opened_tab in opened.values():
            await opened_tab.receive()
        await in_thread(finish_live_rollout)(yard)
        await in_thread(Run.objects.filter(pk=run).update)(heartbeat_at=timezone.now() + timedelta(hours=1))
        for name, (address, region, _) in pages.items():
            fresh = await in_thread(fetch)(client, address)
            while tight(opened[name].regions[region]) != tight(inner_html(fresh, region)):
                await opened[name].receive()


async def test_event_stored_during_a_rendering_is_sent_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is read before its steps, so the new event is the only change of the next rendering."""
    yard, client = await in_thread(populated)()
    target = ["train", str(yard.iterations), yard.tasks[0].key, "0"]

    def overtaken(*args: Any, **kwargs: Any) -> TrajectoryContext | None:
        monkeypatch.setattr(fragments, "build_trajectory", build_trajectory)
        add_and_post(yard, 1)
        return build_trajectory(*args, **kwargs)

    async with tab(client, page="trajectory", run=yard.run.pk, target=target, steps=1) as opened:
        await opened.receive()
        seq = yard.run.last_seq
        monkeypatch.setattr(fragments, "build_trajectory", overtaken)
        await in_thread(notifications._send)({"type": "run.changed"}, run_group(yard.run.pk))
        await opened.until(seq + 1)
        assert [len(update["steps"]["html"]) for update in opened.updates if "steps" in update] == [1]


async def test_step_stored_while_steps_are_read_is_sent_in_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    yard, client = await in_thread(populated)()
    target = ["train", str(yard.iterations), yard.tasks[0].key, "0"]
    first_read, second_read = step_reads.outline, step_reads.steps
    unread = [1]

    def overtaken(read: Callable[..., Any]) -> Callable[..., Any]:
        def reading(*args: Any, **kwargs: Any) -> Any:
            result = read(*args, **kwargs)
            if unread:
                add_and_post(yard, unread.pop())
            return result

        return reading

    async with tab(client, page="trajectory", run=yard.run.pk, target=target, steps=1) as opened:
        await opened.receive()
        monkeypatch.setattr(step_reads, "outline", overtaken(first_read))
        monkeypatch.setattr(step_reads, "steps", overtaken(second_read))
        await in_thread(notifications._send)({"type": "run.changed"}, run_group(yard.run.pk))
        while not opened.steps:
            await opened.receive()
        assert "step stub" not in "".join(opened.steps)


async def test_reconnected_tab_receives_missed_steps() -> None:
    yard, client = await in_thread(populated)()
    target = ["train", str(yard.iterations), yard.tasks[0].key, "0"]
    await in_thread(add_and_post)(yard, 1)
    await in_thread(add_and_post)(yard, 2)
    async with tab(client, page="trajectory", run=yard.run.pk, target=target, steps=1, after=1) as opened:
        update = await opened.receive()
        assert (update["seq"], update["steps"]["start"], len(update["steps"]["html"])) == (
            yard.run.last_seq,
            1,
            2,
        )


async def test_sockets_without_session_or_role_are_refused() -> None:
    async with tab(None) as opened:
        assert (await opened.socket.output())["code"] == SIGNED_OUT
    client = Client(HTTP_HOST="localhost")
    await in_thread(client.force_login)(await in_thread(make_user)("nobody", None))
    async with tab(client) as opened:
        assert (await opened.socket.output())["code"] == FORBIDDEN


OWN = b"http://localhost:8000"
ORIGINS = {
    OWN: True,
    b"http://localhost:8001": False,
    b"http://localhost": False,
    b"https://localhost:8000": False,
    b"http://a.localhost:8000": False,
    b"https://evil.example": False,
    b"http://localhost:8000@evil.example": False,
    b"http://localhost:x": False,
    b"null": False,
    b"": False,
    b"https://yard.example": True,
    b"https://yard.example:443": True,
    b"http://yard.example": False,
    b"https://yard.example:8443": False,
}


async def test_only_same_origin_and_trusted_sites_can_open_a_socket(settings: Any) -> None:
    settings.CSRF_TRUSTED_ORIGINS = ["https://yard.example"]
    for origin, allowed in ORIGINS.items():
        headers = [(b"origin", origin)] if origin else []
        assert await Socket([*headers, (b"host", b"localhost:8000")]).open() is allowed, origin
    stranger = [(b"origin", b"http://evil.example"), (b"host", b"evil.example")]
    assert not await Socket(stranger).open(), "a host that is not the site's"


async def test_proxy_header_determines_the_scheme_of_the_origin(settings: Any) -> None:
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    headers = [(b"origin", b"https://localhost"), (b"host", b"localhost")]
    for proto, allowed in ((b"https", True), (b"http", False), (b"", False)):
        assert await Socket([*headers, (b"x-forwarded-proto", proto)]).open() is allowed


NONSENSE = (
    "{", "[]", '{"page": "admin"}', '{"page": "run", "run": -1}', '{"page": "run", "run": 1, "more": 1}',
    '{"page": "group", "run": 1, "target": ["train", "x", "k"]}', "x" * 10_000,
)  # fmt: skip


async def test_malformed_messages_close_the_socket() -> None:
    _, client = await in_thread(populated)()
    for message in NONSENSE:
        async with tab(client) as opened:
            await opened.socket.send(message)
            assert (await opened.socket.output())["code"] == 4400, message[:50]


async def test_viewers_receive_no_controls_and_no_gold_patch() -> None:
    yard, _ = await in_thread(populated)()
    target = ("train", "0", yard.tasks[0].key, "0")
    for role in Role:
        can_operate = role is not Role.VIEWER
        run_page = await in_thread(snapshot)(Subscription("run", yard.run.pk, (), (), role))
        assert ("formaction" in run_page.html["run-header"]) is can_operate
        page = await in_thread(snapshot)(Subscription("trajectory", yard.run.pk, target, (), role))
        assert ("# gold" in page.html["trajectory-patch"]) is can_operate


async def test_controls_are_enabled_only_for_the_owner_of_a_run() -> None:
    yard, _ = await in_thread(populated)()
    await in_thread(yard.run.refresh_from_db)()
    owner = yard.run.created_by_id
    assert owner is not None
    for user_id in (owner, owner + 1):
        shown = Subscription("run", yard.run.pk, (), (), Role.OPERATOR, user_id)
        header = (await in_thread(snapshot)(shown)).html["run-header"]
        assert ("disabled" in header) is (user_id != owner)


def sign_out(client: Client) -> None:
    client.logout()


def expire(client: Client) -> None:
    Session.objects.update(expire_date=timezone.now())


def change_password(client: Client) -> None:
    user = User.objects.get(username="ada")
    user.set_password("another-horse-battery")
    user.save()


def deactivate(client: Client) -> None:
    User.objects.update(is_active=False)


def take_role(client: Client) -> None:
    User.objects.get(username="ada").groups.clear()


def lower_role(client: Client) -> None:
    accounts.set_role(user=User.objects.get(username="ada"), role=Role.VIEWER)


ENDS: tuple[tuple[Callable[[Client], None], int], ...] = (
    (sign_out, SIGNED_OUT), (expire, SIGNED_OUT), (change_password, SIGNED_OUT),
    (deactivate, FORBIDDEN), (take_role, FORBIDDEN), (lower_role, FORBIDDEN),
)  # fmt: skip


def recreate_ada() -> Client:
    """Create the operator ada again and return its client."""
    User.objects.filter(username="ada").delete()
    client = Client(HTTP_HOST="localhost")
    client.force_login(make_user("ada", Role.OPERATOR))
    return client


async def test_a_socket_ends_with_its_session_or_role() -> None:
    yard, _ = await in_thread(populated)()
    for change, code in ENDS:
        client = await in_thread(recreate_ada)()
        async with tab(client, page="run", run=yard.run.pk) as opened:
            await opened.receive()
            await in_thread(change)(client)
            while (output := await opened.socket.output())["type"] == "websocket.send":
                await asyncio.sleep(0)
            assert output["code"] == code, change


async def test_change_without_a_message_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    yard, client = await in_thread(populated)()
    monkeypatch.setattr(notifications, "_send", lambda *_: None)
    target = ["train", str(yard.iterations), yard.tasks[0].key, "0"]
    async with tab(client, page="trajectory", run=yard.run.pk, target=target, steps=1) as opened:
        await opened.receive()
        await in_thread(add_and_post)(yard, 1)
        await opened.until(yard.run.last_seq)
        assert len(opened.sent_steps()) == 1


async def test_database_failure_is_shown_logged_and_recovered_from(caplog: pytest.LogCaptureFixture) -> None:
    yard, client = await in_thread(populated)()
    target = ["train", str(yard.iterations), yard.tasks[0].key, "0"]
    async with tab(client, page="trajectory", run=yard.run.pk, target=target, steps=1) as opened:
        await opened.receive()
        await in_thread(rename_table)("webapp_trajectory", "webapp_away")
        await in_thread(notifications._send)({"type": "run.changed"}, run_group(yard.run.pk))
        while (await opened.receive())["type"] != "late":
            pass
        await in_thread(rename_table)("webapp_away", "webapp_trajectory")
        await in_thread(add_and_post)(yard, 1)
        await in_thread(add_and_post)(yard, 2)
        while (await opened.receive())["type"] != "ready":
            pass
        await opened.until(yard.run.last_seq)
        assert len(opened.sent_steps()) == 2, "nothing is missed, nothing sent twice"
    assert "a page's update failed" in caplog.text


def rename_table(name: str, to: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {name} RENAME TO {to}")
