"""The pool's page, run tab, API, command and metrics: the same numbers, gated, texts escaped."""

from __future__ import annotations

import json
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from engine.events.sandboxes import CLOCK_BOUNDS_S
from tests.builders.html_regions import chart_data, form_targets, inner_html
from tests.builders.page_builders import Yard, make_yard
from tests.builders.sandbox_builders import clock, lease, pool
from tests.builders.web_builders import launched, make_user
from webapp.contexts.sandboxes import clock_view, history_chart, pool_view, quantile
from webapp.models import AuditEntry, Run
from webapp.permissions import Role
from webapp.selectors.run.sandboxes import PoolPoint
from webapp.services.access import accounts
from webapp.services.ingestion import sandboxes

pytestmark = pytest.mark.django_db
HOSTILE = """<script>alert(1)</script>"'><img src=x onerror=alert(1)>"""


def signed_in(role: Role) -> Client:
    client = Client()
    client.force_login(make_user(f"user-{role}", role))
    return client


def busy_yard(mark: str = "") -> Yard:
    """A run with a pool in every kind of trouble, and its live rollout in one of its sandboxes."""
    yard = make_yard(iterations=1, group_size=2)
    records = [
        lease(
            0, sandbox_id="sb-live", name=f"train/1/x/0{mark}", node=f"node-a{mark}", image=f"local:a{mark}"
        ),
        lease(1, "leased", name=f"grade boltons{mark}"),
        lease(2, "failed", reason=f"the node went away{mark}"),
        lease(3, "closed"),
    ]
    yard.stream.add("sandboxes_changed", records=records)
    image = {"image": f"local:bad{mark}", "failures": 3, "reason": f"no such image{mark}", "refused": True}
    yard.stream.add("pool_status", **pool(live=2))
    yard.stream.add(
        "pool_status",
        **pool(
            images=[image],
            nodes={f"node-a{mark}": 3},
            paused_reason=f"8 starts in a row failed{mark}",
            blocked={f"no node has room{mark}": 2},
        ),
    )
    yard.post()
    sandboxes.record_reaping(found=[sandboxes.Reaped("local", 4, f"slow{mark}")])
    return yard


def text_of(client: Client, address: str) -> str:
    response = client.get(address)
    assert response.status_code == 200
    return response.content.decode()


def test_the_page_shows_what_the_pools_reported() -> None:
    yard = busy_yard()
    text = text_of(signed_in(Role.VIEWER), "/sandboxes/")
    for expected in (
        "no such image", "refused", "8 starts in a row failed", "node-a", "the node went away",
        "ended while in use", "grade boltons", "Orphans reaped", "slow",
        "2 sandboxes cannot start yet: no node has room",
    ):  # fmt: skip
        assert expected in text, expected
    live = f"/runs/{yard.run.pk}/train/1/{yard.tasks[0].key}/0/"
    assert f'href="{live}"' in inner_html(text, "pool-body")
    assert chart_data(text)["columns"]["live"] == [2.0, 4.0]
    assert chart_data(text)["time"] is True
    assert "Reap orphans now" not in text, "viewers only look"


def test_one_run_alive_or_not() -> None:
    yard, (other, _) = busy_yard(), launched()
    client = signed_in(Role.OPERATOR)
    address = f"/sandboxes/?run={yard.run.pk}"
    assert "no such image" in text_of(client, address)
    assert "No sandboxes in use" in text_of(client, f"/sandboxes/?run={other.pk}")
    yard.stream.add("run_finished", state="succeeded")
    yard.post()
    ended = text_of(client, address)
    assert "no such image" in ended, "the last snapshot stays"
    assert "No open sandboxes." in ended
    assert "No sandboxes in use" in text_of(client, "/sandboxes/")
    assert text_of(client, "/sandboxes/?run=999999999999999999999999")


def test_the_tab_of_a_run_is_the_same_view() -> None:
    yard = busy_yard()
    text = text_of(signed_in(Role.VIEWER), f"/runs/{yard.run.pk}/?tab=sandboxes")
    panel = inner_html(text, "run-panel")
    assert "no such image" in panel
    assert "Reaper" not in panel, "the reaper is of no run"
    assert f"/sandboxes/?run={yard.run.pk}" in panel


def test_reports_do_not_drown_the_other_events() -> None:
    yard = busy_yard()
    client = signed_in(Role.VIEWER)
    panel = inner_html(text_of(client, f"/runs/{yard.run.pk}/?tab=events"), "run-panel")
    assert "alert" in panel
    assert '<td class="nowrap">sandbox pool</td>' not in panel
    changed = inner_html(
        text_of(client, f"/runs/{yard.run.pk}/?tab=events&type=sandboxes_changed"), "run-panel"
    )
    assert "1 started, 1 leased, 1 failed, 1 closed" in changed
    status = inner_html(text_of(client, f"/runs/{yard.run.pk}/?tab=events&type=pool_status"), "run-panel")
    assert "7 wanted, 2 waiting, 1 starting, 2 live, 3 idle" in status


def test_texts_from_outside_are_escaped_everywhere() -> None:
    yard = busy_yard(HOSTILE)
    client = signed_in(Role.ADMIN)
    for address in ("/sandboxes/", f"/sandboxes/?run={yard.run.pk}", f"/runs/{yard.run.pk}/?tab=sandboxes"):
        text = text_of(client, address)
        assert "<script>alert" not in text
        assert "<img" not in text
        assert "&lt;script&gt;alert" in text
    metrics = text_of(client, "/metrics")
    assert 'node="node-a<script>alert(1)</script>\\"\'><img' in metrics, "a label of a text format"


def test_reaping_is_for_operators(
    django_capture_on_commit_callbacks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    monkeypatch.setattr("webapp.dispatch.send", lambda name, *_: sent.append(name.value))
    assert signed_in(Role.VIEWER).post("/sandboxes/reap/").status_code == 403
    client = signed_in(Role.OPERATOR)
    assert "/sandboxes/reap/" in form_targets(text_of(client, "/sandboxes/"))
    with django_capture_on_commit_callbacks(execute=True):
        answer = client.post("/sandboxes/reap/", {"run": "7"})
    assert answer["Location"] == "/sandboxes/?run=7"
    with django_capture_on_commit_callbacks(execute=True):
        assert client.post("/sandboxes/reap/", {"run": "//evil.example"})["Location"] == "/sandboxes/"
    assert sent == ["trainyard.reap"] * 2
    assert {entry.action for entry in AuditEntry.objects.filter(actor__username="user-operator")} == {
        "sandboxes.reap"
    }
    token = accounts.create_token(user=make_user("bot", Role.OPERATOR), name="x")
    header = {"Authorization": f"Bearer {token}"}
    assert Client().post("/api/v1/pool/reap", headers=header).status_code == 202
    token = accounts.create_token(user=make_user("eye", Role.VIEWER), name="x")
    assert Client().post("/api/v1/pool/reap", headers={"Authorization": f"Bearer {token}"}).status_code == 403


def test_api_and_command_say_the_same() -> None:
    yard = busy_yard()
    client = signed_in(Role.VIEWER)
    answer = client.get(f"/api/v1/pool?run={yard.run.pk}").json()
    out = StringIO()
    call_command("pool", "--json", run=yard.run.pk, stdout=out)
    assert json.loads(out.getvalue()) == answer
    assert answer["totals"]["live"] == 4
    assert (answer["num_sandboxes"], [row["state"] for row in answer["sandboxes"]]) == (
        2,
        ["started", "leased"],
    )
    assert answer["images"][0]["refused"]
    assert {row["kind"]: row["count"] for row in answer["failures"]} == {"died": 1, "image": 3}
    assert client.get("/api/v1/pool?run=987654").status_code == 404
    assert Client().get("/api/v1/pool").status_code == 401
    out = StringIO()
    call_command("pool", stdout=out)
    said = out.getvalue()
    assert (
        "7 wanted: 4 live of 8, 1 starting, 2 waiting; 3 idle; 20 leases, 4 failures, 6 orphans reaped"
        in said
    )
    assert "2 cannot start yet: no node has room" in said
    assert "image local:bad is refused after 3 failures: no such image" in said
    Run.objects.update(state="succeeded")
    out = StringIO()
    call_command("pool", stdout=out)
    assert out.getvalue() == "no pool has reported\n"


# --- metrics -----------------------------------------------------------------------------------------


def scraped(client: Client, **headers: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    response = client.get("/metrics", headers=headers)
    assert response.status_code == 200
    assert response["Content-Type"].startswith("text/plain; version=")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(response.content.decode())
        for sample in family.samples
    }


def test_metrics_in_prometheus_own_words() -> None:
    yard = busy_yard()
    run = str(yard.run.pk)
    Run.objects.filter(pk=yard.run.pk).update(
        engine_seq=yard.run.last_seq + 5, heartbeat_at=timezone.now() - timedelta(seconds=2)
    )
    found = scraped(signed_in(Role.VIEWER))

    def value(name: str, **labels: str) -> float:
        return found[name, tuple(sorted(labels.items()))]

    assert value("trainyard_runs", state="running") == 1
    assert value("trainyard_runs", state="failed") == 0
    assert value("trainyard_sandboxes", run=run, backend="local", state="live") == 4
    assert value("trainyard_sandbox_node", run=run, node="node-a") == 3
    assert value("trainyard_sandbox_pool_paused", run=run) == 1
    assert value("trainyard_sandbox_images_refused", run=run) == 1
    assert value("trainyard_sandboxes_blocked", run=run) == 2
    assert value("trainyard_sandbox_leases_total", run=run) == 20
    assert value("trainyard_sandbox_failures_total", run=run, kind="image") == 3
    assert value("trainyard_sandbox_orphans_reaped_total", backend="local") == 4
    assert value("trainyard_sandbox_seconds_count", run=run, clock="start") == 20
    assert value("trainyard_sandbox_seconds_sum", run=run, clock="start") == pytest.approx(19 * 0.03 + 40)
    assert value("trainyard_sandbox_seconds_bucket", run=run, clock="start", le="0.05") == 19
    assert value("trainyard_sandbox_seconds_bucket", run=run, clock="start", le="+Inf") == 20
    assert value("trainyard_ingest_lag_events", run=run) == 5
    assert value("trainyard_ingest_lag_seconds", run=run) > 0
    assert 1 < value("trainyard_heartbeat_age_seconds", run=run) < 60


def test_words_of_an_engine_are_no_labels() -> None:
    yard = make_yard(iterations=1, group_size=2)
    odd = {f"kind-{n}": 1 for n in range(50)} | {"image": 3, "infrastructure": 2}
    clocks = {f"clock-{n}": clock(0.1) for n in range(50)} | {"start": clock(0.1)}
    yard.stream.add("pool_status", **pool(failures=odd, clocks=clocks))
    yard.post()
    found = scraped(signed_in(Role.VIEWER))
    run = ("run", str(yard.run.pk))
    kinds = {labels: n for (name, labels), n in found.items() if name == "trainyard_sandbox_failures_total"}
    assert kinds == {(("kind", "image"), run): 3, (("kind", "infrastructure"), run): 52}
    counted = [labels for name, labels in found if name == "trainyard_sandbox_seconds_count"]
    assert counted == [(("clock", "start"), run)]


def test_metrics_are_gated_like_everything_else() -> None:
    assert Client().get("/metrics").status_code == 302
    token = accounts.create_token(user=make_user("prometheus", Role.VIEWER), name="scrape")
    assert scraped(Client(), Authorization=f"Bearer {token}")
    wrong = Client().get("/metrics", headers={"Authorization": f"Bearer {token}x"})
    assert (wrong.status_code, wrong["WWW-Authenticate"]) == (401, "Bearer")
    assert Client().get("/metrics", headers={"Authorization": "Basic eDp5"}).status_code == 401
    nobody = accounts.create_token(user=make_user("nobody", None), name="x")
    assert Client().get("/metrics", headers={"Authorization": f"Bearer {nobody}"}).status_code == 403


# --- arithmetic --------------------------------------------------------------------------------------


def test_quantiles_lie_inside_their_bucket() -> None:
    counts = clock(*[0.03] * 99, 700.0)["counts"]
    middle = quantile(counts, 0.5)
    assert middle is not None
    assert 0.025 < middle < 0.05
    high = quantile(counts, 0.995)
    assert high is not None
    assert 600 < high <= 1800
    assert quantile([0] * len(counts), 0.5) is None
    assert quantile([0] * (len(counts) - 1) + [3], 0.5) == CLOCK_BOUNDS_S[-1]


def test_a_histogram_is_cut_to_its_used_buckets() -> None:
    view = clock_view("start", clock(0.03, 0.03, 0.3)["counts"], 0.36)
    assert [(bar.label, bar.count, bar.height) for bar in view.bars] == [
        ("up to 50 ms", 2, 100.0), ("up to 100 ms", 0, 0.0), ("up to 250 ms", 0, 0.0),
        ("up to 500 ms", 1, 50.0),
    ]  # fmt: skip
    assert view.mean == pytest.approx(0.12)
    empty = clock_view("pull", [], 0.0)
    assert (empty.bars, empty.mean, empty.median, empty.count) == ((), None, None, 0)


def test_the_chart_adds_runs_up_at_every_report() -> None:
    points = [PoolPoint(1, 10.0, 4, 1, 3, 0), PoolPoint(2, 11.0, 2, 0, 2, 0), PoolPoint(1, 12.0, 1, 0, 1, 0)]
    chart = history_chart(points)
    assert chart.x == [10.0, 11.0, 12.0]
    assert chart.columns == {
        "wanted": [4.0, 6.0, 3.0], "starting": [1.0, 1.0, 0.0], "live": [3.0, 5.0, 3.0],
    }, "what no backend has is left out"  # fmt: skip
    assert history_chart([]).x == []


def test_a_view_without_pools_knows_nothing() -> None:
    view = pool_view()
    assert (view.as_of, view.totals.wanted, view.nodes, view.num_sandboxes) == (None, 0, (), 0)
