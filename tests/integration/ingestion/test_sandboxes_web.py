"""Leases and pools from events to rows: batches, attempts, ends, the reaper, ingest lag."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from engine.types import RunState
from tests.builders.event_builders import Stream, ref
from tests.builders.sandbox_builders import lease, pool
from tests.builders.web_builders import launched, post, relaunched
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


def life(stream: Stream) -> None:
    """Leases on record before, while and after their sandboxes exist."""
    stream.add("sandboxes_changed", records=[lease(1, "leased"), lease(2, "leased")])
    stream.add("sandboxes_changed", records=[lease(1), lease(3, "leased")])
    stream.add("pool_status", **pool(live=1))
    stream.add("sandboxes_changed", records=[lease(1, "closed"), lease(2, "failed"), lease(3)])
    stream.add("pool_status", **pool(live=5, paused_reason="starts fail"))


@pytest.mark.parametrize("size", [1, 2, 100])
def test_rows_do_not_depend_on_how_events_are_batched(size: int) -> None:
    run, claim, stream = running()
    life(stream)
    for start in range(0, len(stream.lines), size):
        post(claim, stream, start, start + size)
    post(claim, stream)  # a second time: nothing changes
    found = rows(run)
    assert [(row["lease"], row["state"], row["sandbox_id"]) for row in found] == [
        ("ls-0001", "closed", "sb-1"), ("ls-0002", "failed", "sb-2"), ("ls-0003", "started", "sb-3"),
    ]  # fmt: skip
    assert (found[1]["failure"], found[1]["reason"]) == ("died", "the node went away")
    assert found[0]["ended_at"] - found[0]["started_at"] == timedelta(seconds=1)
    newest = Pool.objects.get(run=run)
    assert (newest.live, newest.paused_reason, newest.nodes) == (5, "starts fail", {"node-a": 3, "node-b": 1})
    assert Event.objects.filter(run=run, type="pool_status").count() == 2


def test_a_new_attempt_loses_what_the_one_before_held() -> None:
    run, claim, stream = running()
    life(stream)
    newer = relaunched(run, claim)
    stream.epoch = newer.epoch
    stream.started(resumed_from=0)
    stream.add("sandboxes_changed", records=[lease(9, "leased")])
    post(newer, stream)
    assert [row["state"] for row in rows(run)] == ["closed", "failed", "lost", "leased"]
    assert not Pool.objects.filter(run=run).exists(), "its pool is gone until the new one reports"


@pytest.mark.parametrize("how", ["event", "given up"])
def test_an_ended_run_holds_nothing(how: str) -> None:
    run, claim, stream = running()
    life(stream)
    post(claim, stream)
    if how == "event":
        stream.add("run_finished", state="failed", reason="x")
        post(claim, stream)
    else:
        assert states.move(run_id=run.pk, to=RunState.FAILED, reason="its process was killed")
    assert [row["state"] for row in rows(run)] == ["closed", "failed", "lost"]
    found = Pool.objects.get(run=run)
    assert (found.wanted, found.live, found.idle, found.opened) == (0, 0, 0, 20)
    assert reads.pools() == []
    assert reads.pools(run.pk) == [found]
    assert reads.open_sandboxes() == ([], 0)


def test_live_sandboxes_know_their_rollouts() -> None:
    run, claim, stream = running()
    stream.add("sandboxes_changed", records=[lease(1), lease(2), lease(3, "closed"), lease(4, "leased")])
    stream.add("trajectory_started", ref=ref(0, "a", 2), sandbox_id="sb-1")
    stream.trajectory(ref(0, "a", 3))
    post(claim, stream)
    found, total = reads.open_sandboxes(run.pk, limit=2)
    assert total == 3
    assert [(one.sandbox.lease, one.phase, one.task_key, one.index) for one in found] == [
        ("ls-0001", "train", "a", 2), ("ls-0002", "", "", 0),
    ]  # fmt: skip
    failed, count = reads.failed_sandboxes(run.pk)
    assert (failed, count) == ([], 0)


def test_history_is_in_order_over_runs() -> None:
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


def test_what_another_trainer_posts_is_cut_to_the_columns() -> None:
    run, claim, stream = running()
    stream.add("sandboxes_changed", records=[lease(1, name="n" * 999, node="x\x00y", failure="f" * 99)])
    post(claim, stream)
    (row,) = rows(run)
    assert (len(row["name"]), row["node"], len(row["failure"])) == (200, "x\ufffdy", 32)


def test_reaping_adds_up_by_backend() -> None:
    found = [sandboxes.Reaped("local", 2, ""), sandboxes.Reaped("kubernetes", 1, "no answer"),
             sandboxes.Reaped("kubernetes", 4, "")]  # fmt: skip
    sandboxes.record_reaping(found=found)
    later = timezone.now() + timedelta(seconds=30)
    sandboxes.record_reaping(found=[sandboxes.Reaped("kubernetes", 0, "")], now=later)
    kubernetes, local = reads.reapers()
    assert (local.removed, local.last_removed, local.error) == (2, 2, "")
    assert (kubernetes.removed, kubernetes.last_removed, kubernetes.error) == (5, 5, "")
    assert kubernetes.checked_at == later
    assert kubernetes.last_removed_at is not None
    assert kubernetes.last_removed_at < later


def test_backends_of_runs_that_live_or_ended_today_are_reaped() -> None:
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


def test_ingest_lag_is_what_the_engine_wrote_and_the_server_lacks() -> None:
    run, claim, stream = running()
    post(claim, stream)
    heartbeats.beat(run_id=run.pk, token=claim.token, epoch=claim.epoch, seq=1)
    (lag,) = reads.ingest_lags()
    assert (lag.run_id, lag.events, lag.seconds) == (run.pk, 0, 0.0)
    heartbeats.beat(run_id=run.pk, token=claim.token, epoch=claim.epoch, seq=41)
    stored = Event.objects.get(run=run).time
    (lag,) = reads.ingest_lags(stored + timedelta(seconds=12))
    assert (lag.events, lag.seconds) == (40, 12.0)
