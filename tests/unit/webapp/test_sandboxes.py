"""Sandbox pool on page, API, command and metrics: equal numbers, required roles, audited reaping."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from engine.events.sandboxes import CLOCK_BOUNDS_S
from tests.builders.commands import run_command
from tests.builders.sandbox_builders import clock, lease, pool
from tests.builders.web.html_regions import form_targets
from tests.builders.web.page_builders import Yard, make_yard
from tests.builders.web.web_builders import signed_in
from webapp.core.permissions import Role
from webapp.models import AuditEntry, Run
from webapp.sandboxes import services as sandboxes
from webapp.sandboxes.contexts import quantile

pytestmark = pytest.mark.django_db


def busy_yard(mark: str = "") -> Yard:
    """Create a run with pool failures of every kind and a live rollout in one of its sandboxes."""
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


def test_reaping_is_requested_and_audited(
    django_capture_on_commit_callbacks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    monkeypatch.setattr("webapp.core.dispatch.send", lambda name, *_: sent.append(name.value))
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
    assert client.post("/api/v1/pool/reap").status_code == 202


def test_api_and_command_return_the_same_pool_status() -> None:
    yard = busy_yard()
    client = signed_in(Role.VIEWER)
    answer = client.get(f"/api/v1/pool?run={yard.run.pk}").json()
    out = run_command("pool", "show", "--json", "--run", yard.run.pk)
    assert json.loads(out) == answer
    assert answer["totals"]["live"] == 4
    assert (answer["num_sandboxes"], [row["state"] for row in answer["sandboxes"]]) == (
        2,
        ["started", "leased"],
    )
    assert answer["images"][0]["refused"]
    assert {row["kind"]: row["count"] for row in answer["failures"]} == {"died": 1, "image": 3}
    assert client.get("/api/v1/pool?run=987654").status_code == 404
    assert Client().get("/api/v1/pool").status_code == 401
    out = run_command("pool", "show")
    assert "7 wanted: 4 live of 8, 1 starting, 2 waiting; 3 idle; 20 leases" in out


# --- metrics -----------------------------------------------------------------------------------------


def scrape_metrics(client: Client, **headers: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    response = client.get("/metrics", headers=headers)
    assert response.status_code == 200
    assert response["Content-Type"].startswith("text/plain; version=")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(response.content.decode())
        for sample in family.samples
    }


def test_metrics_are_exported_in_prometheus_format() -> None:
    yard = busy_yard()
    run = str(yard.run.pk)
    Run.objects.filter(pk=yard.run.pk).update(
        engine_seq=yard.run.last_seq + 5, heartbeat_at=timezone.now() - timedelta(seconds=2)
    )
    samples = scrape_metrics(signed_in(Role.VIEWER))

    def value(name: str, **labels: str) -> float:
        return samples[name, tuple(sorted(labels.items()))]

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


# --- arithmetic --------------------------------------------------------------------------------------


def test_quantiles_are_within_their_bucket() -> None:
    counts = clock(*[0.03] * 99, 700.0)["counts"]
    middle = quantile(counts, 0.5)
    assert middle is not None
    assert 0.025 < middle < 0.05
    high = quantile(counts, 0.995)
    assert high is not None
    assert 600 < high <= 1800
    assert quantile([0] * len(counts), 0.5) is None
    assert quantile([0] * (len(counts) - 1) + [3], 0.5) == CLOCK_BOUNDS_S[-1]
