"""Event shipping to a real HTTP server with injected network faults."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.errors import FencedError
from engine.events.delivery.control import Control, Heartbeat
from engine.events.delivery.shipper import Shipper, load_cursor
from engine.events.delivery.spool import SpoolSink, read_lines
from engine.events.types import Alert, RunPaused
from tests.fakes.ingest_server import Answer, IngestServer, ingest_server


@pytest.fixture
def server() -> Iterator[IngestServer]:
    with ingest_server() as running:
        yield running


@contextmanager
def shipping(run_dir: Path, server: IngestServer, *, epoch: int = 1) -> Iterator[tuple[SpoolSink, Shipper]]:
    sink = SpoolSink(run_dir, epoch=epoch)
    shipper = Shipper(
        sink, url=f"{server.url}/api/v1/runs/r1/events", token=f"secret.{epoch}", on_fenced=sink.fence
    )
    try:
        yield sink, shipper
    finally:
        shipper.close()
        sink.close()


def emit(sink: SpoolSink, count: int, *, size: int = 10) -> None:
    for _ in range(count):
        sink.emit(Alert, severity="info", code="test", message="m" * size)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.01)


def seqs(server: IngestServer) -> list[int]:
    return [event["seq"] for event in server.events]


def test_events_arrive_once_in_order_and_the_cursor_is_kept(tmp_path: Path, server: IngestServer) -> None:
    with shipping(tmp_path, server) as (sink, shipper):
        emit(sink, 1200)
        assert shipper.drain(240)
    assert seqs(server) == list(range(1, 1201))
    assert load_cursor(tmp_path / "events.acked", tmp_path / "events.jsonl").seq == 1200
    requests = server.requests
    with shipping(tmp_path, server) as (_, shipper):
        assert shipper.drain(240)
    assert server.requests == requests


@pytest.mark.parametrize(
    "fault",
    [
        Answer(500),
        Answer(503, store_first=True),
        Answer(200, drop=True),
        Answer(200, drop=True, store_first=True),
        Answer(429, retry_after="1"),
        Answer(404),
        Answer(200, {"unexpected": True}),
    ],
)
def test_events_survive_transient_failures(tmp_path: Path, server: IngestServer, fault: Answer) -> None:
    server.faults = [fault]
    with shipping(tmp_path, server) as (sink, shipper):
        emit(sink, 30)
        assert shipper.drain(240)
        assert shipper.failure == ""
        assert server.requests >= 2
    assert seqs(server) == list(range(1, 31))


@pytest.mark.parametrize("seed", range(3))
def test_random_faults_never_lose_or_repeat_events(
    tmp_path: Path, server: IngestServer, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.events.delivery.shipper._BACKOFF_FIRST_S", 0.02)
    monkeypatch.setattr("engine.events.delivery.shipper.MAX_EVENTS", 5)  # at least 12 requests, one per fault
    rng = random.Random(seed)
    choices = [
        None,
        None,
        None,
        Answer(500),
        Answer(200, drop=True),
        Answer(200, drop=True, store_first=True),
    ]
    server.faults = [rng.choice(choices) for _ in range(12)]
    total = 0
    for epoch in range(1, 4):
        server.epoch = epoch
        with shipping(tmp_path, server, epoch=epoch) as (sink, shipper):
            count = rng.randrange(20, 60)
            emit(sink, count, size=rng.randrange(5, 5000))
            total += count
            if epoch == 3:
                assert shipper.drain(240)
    assert seqs(server) == list(range(1, total + 1))
    assert server.events == [json.loads(line.data) for line in read_lines(tmp_path / "events.jsonl")]
    assert {event["epoch"] for event in server.events} == {1, 2, 3}
    assert server.faults == []


def test_a_gap_rewinds_and_a_lost_cursor_skips_forward(tmp_path: Path, server: IngestServer) -> None:
    with shipping(tmp_path, server) as (sink, shipper):
        emit(sink, 50)
        assert shipper.drain(240)
        server.events = server.events[:20]
        emit(sink, 5)
        assert shipper.drain(240)
    assert seqs(server) == list(range(1, 56))
    (tmp_path / "events.acked").write_text('{"seq": 7, "offset": 13}')
    with shipping(tmp_path, server) as (sink, shipper):
        emit(sink, 1)
        assert shipper.drain(240)
    assert seqs(server) == list(range(1, 57))


def test_new_attempt_sends_unsent_events_of_the_old_one(tmp_path: Path, server: IngestServer) -> None:
    sink = SpoolSink(tmp_path, epoch=1)
    emit(sink, 10)
    sink.close()
    server.epoch = 2
    with shipping(tmp_path, server, epoch=2) as (sink, shipper):
        emit(sink, 1)
        assert shipper.drain(240)
    assert seqs(server) == list(range(1, 12))
    assert not shipper.fenced


def test_a_fenced_attempt_stops_writing(tmp_path: Path, server: IngestServer) -> None:
    with shipping(tmp_path, server) as (sink, shipper):
        emit(sink, 3)
        assert shipper.drain(240)
        server.epoch = 2
        sink.emit(RunPaused)
        until(lambda: shipper.fenced)
        with pytest.raises(FencedError, match="attempt 2"):
            emit(sink, 1)
        assert not shipper.drain(5)
    assert seqs(server) == [1, 2, 3]


def test_finished_run_fences_an_attempt_that_still_writes(tmp_path: Path, server: IngestServer) -> None:
    with shipping(tmp_path, server) as (sink, shipper):
        emit(sink, 3)
        assert shipper.drain(240)
        server.over = "stopped"
        sink.emit(RunPaused)
        until(lambda: shipper.fenced)
        with pytest.raises(FencedError, match="the run is stopped"):
            emit(sink, 1)
        assert shipper.failure == ""
    assert seqs(server) == [1, 2, 3]


def test_finished_run_with_all_events_stored_is_delivered(tmp_path: Path, server: IngestServer) -> None:
    with shipping(tmp_path, server) as (sink, shipper):
        server.faults = [Answer(200, drop=True, store_first=True)]
        emit(sink, 3)
        sink.sync()
        until(lambda: server.acked == 3)
        server.over = "succeeded"
        assert shipper.drain(240)
        assert not shipper.fenced


def test_a_rejected_event_fails_the_run_and_is_not_skipped(tmp_path: Path, server: IngestServer) -> None:
    with shipping(tmp_path, server) as (sink, shipper):
        emit(sink, 3)
        assert shipper.drain(240)
        server.faults = [Answer(422, {"detail": "no such field", "line": 1})]
        emit(sink, 3)
        until(lambda: bool(shipper.failure))
        assert "event 4" in shipper.failure
        assert "no such field" in shipper.failure
        assert not shipper.drain(5)
    assert seqs(server) == [1, 2, 3]


def test_a_wrong_token_is_a_failure_with_a_reason(tmp_path: Path, server: IngestServer) -> None:
    server.token = "other"
    with shipping(tmp_path, server) as (sink, shipper):
        emit(sink, 1)
        until(lambda: bool(shipper.failure))
    assert "401" in shipper.failure


def test_batches_shrink_when_they_are_too_large(tmp_path: Path, server: IngestServer) -> None:
    server.max_body = 700
    with shipping(tmp_path, server) as (sink, shipper):
        emit(sink, 40, size=50)
        assert shipper.drain(240)
    assert seqs(server) == list(range(1, 41))


def test_shipper_waits_for_an_unreachable_server(tmp_path: Path) -> None:
    with ingest_server() as closed_server:
        pass
    with shipping(tmp_path, closed_server) as (sink, shipper):
        emit(sink, 5)
        assert not shipper.drain(0.5)
        assert shipper.failure == ""
        assert json.loads((tmp_path / "events.jsonl").read_text().splitlines()[-1])["seq"] == 5


def test_heartbeat_stops_an_attempt_of_a_finished_run(server: IngestServer) -> None:
    control = Control()
    server.over = "succeeded"
    heartbeat = Heartbeat(control, url=f"{server.url}/api/v1/runs/r1/heartbeat", token="secret.1", epoch=1)
    try:
        until(lambda: control.desired() == "stop")
        assert (control.stop_reason, control.fence_reason) == ("the run is succeeded", "")
    finally:
        heartbeat.close()


def test_heartbeats_deliver_the_desired_state_and_fence(server: IngestServer) -> None:
    control = Control()
    server.desired = "pause"
    heartbeat = Heartbeat(control, url=f"{server.url}/api/v1/runs/r1/heartbeat", token="secret.1", epoch=1)
    try:
        until(lambda: control.desired() == "pause")
        assert server.heartbeats[0]["pid"] > 0
        server.desired = "stop"
        until(lambda: control.desired() == "stop")
        server.desired = "run"
        server.epoch = 2
        until(lambda: "attempt 2" in control.fence_reason)
        assert control.desired() == "stop"
    finally:
        heartbeat.close()
