"""Rows of leases and pools: batches, attempts, ended runs, reaping, ingest lag."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from engine.types import RunState
from tests.builders.sandbox_builders import lease, pool
from tests.builders.web.event_builders import Stream, ref
from tests.builders.web.web_builders import launched, post, relaunched
from webapp.ingestion.services import heartbeats
from webapp.models import Event, Pool, Run, Sandbox
from webapp.runs.services import attempts, states
from webapp.sandboxes import selectors as reads
from webapp.sandboxes import services as sandboxes

pytestmark = pytest.mark.django_db


def running() -> tuple[Run, attempts.Claim, Stream]:
    run, claim = launched()
    stream = Stream(epoch=claim.epoch)
    stream.started()
    return run, claim, stream


def rows(run: Run) -> list[dict[str, Any]]:
    return [dict(row) for row in Sandbox.objects.filter(run=run).order_by("lease").values()]


def add_leases(stream: Stream) -> None:
    """Add leases before, during and after the life of their sandboxes."""
    stream.add("sandboxes_changed", records=[lease(1, "leased"), lease(2, "leased")])
    stream.add("sandboxes_changed", records=[lease(1), lease(3, "leased")])
    stream.add("pool_status", **pool(live=1))
    stream.add("sandboxes_changed", records=[lease(1, "closed"), lease(2, "failed"), lease(3)])
    stream.add("pool_status", **pool(live=5, paused_reason="starts fail"))


@pytest.mark.parametrize("size", [1, 2, 100])
def test_rows_do_not_depend_on_how_events_are_batched(size: int) -> None:
    run, claim, stream = running()
    add_leases(stream)
    for start in range(0, len(stream.lines), size):
        post(claim, stream, start, start + size)
    post(claim, stream)  # repeated events change nothing
    stored = rows(run)
    assert [(row["lease"], row["state"], row["sandbox_id"]) for row in stored] == [
        ("ls-0001", "closed", "sb-1"), ("ls-0002", "failed", "sb-2"), ("ls-0003", "started", "sb-3"),
    ]  # fmt: skip
    assert (stored[1]["failure"], stored[1]["reason"]) == ("died", "the node went away")
    assert stored[0]["ended_at"] - stored[0]["started_at"] == timedelta(seconds=1)
    newest = Pool.objects.get(run=run)
    assert (newest.live, newest.paused_reason, newest.nodes) == (5, "starts fail", {"node-a": 3, "node-b": 1})
    assert Event.objects.filter(run=run, type="pool_status").count() == 2


def test_new_attempt_marks_open_sandboxes_of_the_previous_one_as_lost() -> None:
    run, claim, stream = running()
    add_leases(stream)
    newer = relaunched(run, claim)
    stream.epoch = newer.epoch
    stream.started(resumed_from=0)
    stream.add("sandboxes_changed", records=[lease(9, "leased")])
    post(newer, stream)
    assert [row["state"] for row in rows(run)] == ["closed", "failed", "lost", "leased"]
    assert not Pool.objects.filter(run=run).exists(), "its pool is gone until the new one reports"


@pytest.mark.parametrize("how", ["event", "given up"])
def test_ended_run_has_no_open_sandboxes_and_an_empty_pool(how: str) -> None:
    run, claim, stream = running()
    add_leases(stream)
    post(claim, stream)
    if how == "event":
        stream.add("run_finished", state="failed", reason="x")
        post(claim, stream)
    else:
        assert states.move(run_id=run.pk, to=RunState.FAILED, reason="its process was killed")
    assert [row["state"] for row in rows(run)] == ["closed", "failed", "lost"]
    stored_pool = Pool.objects.get(run=run)
    assert (stored_pool.wanted, stored_pool.live, stored_pool.idle, stored_pool.opened) == (0, 0, 0, 20)
    assert reads.pools() == []
    assert reads.pools(run.pk) == [stored_pool]
    assert reads.open_sandboxes() == ([], 0)


def test_open_sandboxes_are_listed_with_their_rollouts() -> None:
    run, claim, stream = running()
    stream.add("sandboxes_changed", records=[lease(1), lease(2), lease(3, "closed"), lease(4, "leased")])
    stream.add("trajectory_started", ref=ref(0, "a", 2), sandbox_id="sb-1")
    stream.trajectory(ref(0, "a", 3))
    post(claim, stream)
    listed, total = reads.open_sandboxes(run.pk, limit=2)
    assert total == 3
    assert [(entry.sandbox.lease, entry.phase, entry.task_key, entry.index) for entry in listed] == [
        ("ls-0001", "train", "a", 2), ("ls-0002", "", "", 0),
    ]  # fmt: skip
    failed, count = reads.failed_sandboxes(run.pk)
    assert (failed, count) == ([], 0)


def test_pool_history_orders_points_of_several_runs_by_time() -> None:
    first, claim, stream = running()
    for live in (1, 2):
        stream.add("pool_status", **pool(live=live))
    post(claim, stream)
    second, claim, stream = running()
    sparse = {name: value for name, value in pool(live=9).items() if name != "idle"}
    stream.add("pool_status", **sparse)
    post(claim, stream)
    points = reads.pool_history([first.pk, second.pk])
    assert [(point.run_id, point.live) for point in points] == [(first.pk, 1), (second.pk, 9), (first.pk, 2)]
    assert points[1].idle == 0, "engines without warm sandboxes report none"
    assert reads.pool_history([]) == []


def test_oversized_lease_fields_are_cut_to_their_columns() -> None:
    run, claim, stream = running()
    stream.add("sandboxes_changed", records=[lease(1, name="n" * 999, node="x\x00y", failure="f" * 99)])
    post(claim, stream)
    (row,) = rows(run)
    assert (len(row["name"]), row["node"], len(row["failure"])) == (200, "x\ufffdy", 32)


def test_reaped_sandboxes_are_summed_by_backend() -> None:
    reaped = [sandboxes.Reaped("local", 2, ""), sandboxes.Reaped("kubernetes", 1, "no answer"),
             sandboxes.Reaped("kubernetes", 4, "")]  # fmt: skip
    sandboxes.record_reaping(found=reaped)
    later = timezone.now() + timedelta(seconds=30)
    sandboxes.record_reaping(found=[sandboxes.Reaped("kubernetes", 0, "")], now=later)
    kubernetes, local = reads.reapers()
    assert (local.removed, local.last_removed, local.error) == (2, 2, "")
    assert (kubernetes.removed, kubernetes.last_removed, kubernetes.error) == (5, 5, "")
    assert kubernetes.checked_at == later
    assert kubernetes.last_removed_at is not None
    assert kubernetes.last_removed_at < later


def test_backends_of_live_and_recently_ended_runs_are_reaped() -> None:
    assert sandboxes.backend_settings(reads.configs_in_use()) == [{"backend": "local"}]
    run, _, _ = running()
    section = {"backend": "kubernetes", "max_live": 3, "kubernetes": {"namespace": "yard"}}
    Run.objects.filter(pk=run.pk).update(config=run.config | {"sandbox": section})
    other, _, _ = running()
    Run.objects.filter(pk=other.pk).update(config=run.config | {"sandbox": section | {"max_live": 9}})
    expected = {"backend": "kubernetes", "kubernetes": {"namespace": "yard"}}
    assert sandboxes.backend_settings(reads.configs_in_use()) == [{"backend": "local"}, expected]
    long_ago = timezone.now() - timedelta(days=3)
    Run.objects.update(state="failed", finished_at=long_ago)
    assert sandboxes.backend_settings(reads.configs_in_use()) == [{"backend": "local"}]


def test_ingest_lag_counts_written_events_that_the_server_lacks() -> None:
    run, claim, stream = running()
    post(claim, stream)
    heartbeats.beat(run_id=run.pk, token=claim.token, epoch=claim.epoch, seq=1)
    (lag,) = reads.ingest_lags()
    assert (lag.run_id, lag.events, lag.seconds) == (run.pk, 0, 0.0)
    heartbeats.beat(run_id=run.pk, token=claim.token, epoch=claim.epoch, seq=41)
    stored = Event.objects.get(run=run).time
    (lag,) = reads.ingest_lags(stored + timedelta(seconds=12))
    assert (lag.events, lag.seconds) == (40, 12.0)
