"""Inference engines in the database, on the run's page and by API."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from tests.builders.web.event_builders import T0, Stream
from tests.builders.web.web_builders import launched, make_user, post, relaunched, snapshot
from webapp.core.permissions import Role
from webapp.ingestion.services.engines import INTERVAL_S
from webapp.models import EngineReport, EngineSample
from webapp.runs.selectors import engines as reads

pytestmark = pytest.mark.django_db


def replica(name: str = "engine-0", **fields: Any) -> dict[str, Any]:
    defaults = {
        "name": name, "state": "ready", "version": 3, "running": 12, "waiting": 1, "kv_use": 0.5,
        "prefix_hit_rate": 0.93, "tokens_per_s": 410.0, "restarts": 0, "detail": "",
    }  # fmt: skip
    return defaults | fields


def report(stream: Stream, time: float, *replicas: dict[str, Any], queued: int = 0) -> None:
    stream.add("engines_reported", replicas=list(replicas), queued=queued, time=time)


def test_the_newest_report_and_the_first_of_each_interval_are_stored() -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    base = INTERVAL_S * (T0 // INTERVAL_S)
    for second in range(0, 3 * INTERVAL_S, 5):
        report(stream, base + second, replica(running=second), queued=second)
    post(claim, stream)
    newest = EngineReport.objects.get(run=run)
    assert (newest.replicas[0]["running"], newest.queued) == (3 * INTERVAL_S - 5, 3 * INTERVAL_S - 5)
    samples = EngineSample.objects.filter(run=run)
    assert [sample.replicas[0]["running"] for sample in samples] == [0, INTERVAL_S, 2 * INTERVAL_S]


def test_stored_reports_do_not_depend_on_batches() -> None:
    stored = []
    for size in (1, 2, 100):
        run, claim = launched()
        stream = Stream()
        stream.started()
        for second in range(0, 100, 3):
            report(stream, T0 + second, replica(running=second), queued=second)
        for start in range(0, len(stream.lines), size):
            post(claim, stream, start, start + size)
        rows = EngineSample.objects.filter(run=run).values_list("interval", "replicas")
        newest = EngineReport.objects.filter(run=run).values_list("time", "replicas", "queued")
        stored.append((list(rows), list(newest)))
        assert snapshot(run)
    assert stored[0] == stored[1] == stored[2]


def test_new_attempt_clears_the_engines_and_keeps_their_history() -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    report(stream, T0, replica())
    post(claim, stream)
    newer = relaunched(run, claim)
    second = Stream(epoch=newer.epoch, first_seq=stream.next_seq)
    second.started(resumed_from=0)
    post(newer, second)
    assert not EngineReport.objects.filter(run=run).exists()
    assert EngineSample.objects.filter(run=run).count() == 1


def test_long_history_is_thinned_evenly_up_to_the_newest_sample() -> None:
    run, _ = launched()
    count = 5 * reads.MAX_POINTS + 3
    EngineSample.objects.bulk_create(
        EngineSample(
            run=run, interval=number, time=f"2026-11-22T00:00:00.{number:06d}Z", replicas=[replica()]
        )
        for number in range(count)
    )
    intervals = [sample.interval for sample in reads.history(run.pk)]
    assert len(intervals) <= reads.MAX_POINTS
    assert intervals[-1] == count - 1
    assert {later - earlier for earlier, later in zip(intervals, intervals[1:], strict=False)} == {6}


def test_the_api_returns_the_engines() -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    report(stream, T0, replica(), queued=2)
    post(claim, stream)
    client = Client()
    client.force_login(make_user("ada", Role.VIEWER))
    response = client.get(f"/api/v1/runs/{run.pk}/engines").json()
    assert response["queued"] == 2
    assert response["newest"]["replicas"] == [replica()]
    assert len(response["history"]) == 1
    other, _ = launched()
    assert client.get(f"/api/v1/runs/{other.pk}/engines").json() == {
        "newest": None,
        "queued": 0,
        "history": [],
    }


def test_no_migration_is_missing() -> None:
    call_command("makemigrations", "webapp", check=True, dry_run=True, verbosity=0)
