"""Supervision of ranks by their events: silent, failed and lost ranks, and the reported cause."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import AuthenticationError, Pipe
from multiprocessing.connection import Client, Connection
from types import SimpleNamespace
from typing import Any

import pytest

from engine.errors import CheckpointError, RankLostError, TrainerError, UpdateAbandonedError
from engine.trainer.processes import watch
from engine.trainer.processes.link import RankListener
from engine.trainer.processes.watch import RankWatch


class Rig:
    """Rank watch over two pipes, with a simulated clock."""

    def __init__(self) -> None:
        self.now = 100.0
        pairs = [Pipe() for _ in range(2)]
        self.ranks: list[Connection] = [rank_end for _, rank_end in pairs]
        self.stopped = threading.Event()
        self.watch: RankWatch
        self._events: list[Connection] = [watch_end for watch_end, _ in pairs]

    def start(self) -> None:
        self.watch = RankWatch(self._events, timeout_s=30.0, stop=self.stopped.set)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    rig = Rig()
    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: rig.now))
    rig.start()
    yield rig
    rig.watch.close()


def wait_until(condition: Callable[[], object]) -> None:
    while not condition():
        time.sleep(0.001)


def hang_second(rig: Rig) -> None:
    """Send heartbeats of the first rank only while time passes."""
    for _ in range(3):
        rig.now += 15.0
        rig.ranks[0].send(("alive", None))
        wait_until(lambda: not rig._events[0].poll() or rig.stopped.is_set())


def fail_first_then_lose_second(rig: Rig) -> None:
    rig.ranks[0].send(("failed", "the other side is gone"))
    rig.ranks[1].close()


def fail_both(rig: Rig) -> None:
    for rank in rig.ranks:
        rank.send(("failed", "ValueError: hot"))


def fail_one_for_long(rig: Rig) -> None:
    rig.ranks[1].send(("failed", "ValueError: hot"))
    wait_until(lambda: rig.watch._lost)
    rig.now += 10.0


@pytest.mark.parametrize(
    ("happens", "kind", "message"),
    [
        (hang_second, RankLostError, "rank 1 of the trainer gave no sign of life for 30 s"),
        (fail_first_then_lose_second, RankLostError, "rank 1 of the trainer ended unexpectedly"),
        (fail_both, TrainerError, "rank 0 of the trainer failed: ValueError: hot"),
        (fail_one_for_long, TrainerError, "rank 1 of the trainer failed: ValueError: hot"),
        (lambda rig: rig.watch.abandon(), UpdateAbandonedError, "was abandoned"),
    ],
)
def test_failure_names_the_responsible_rank_and_stops_all_ranks(
    rig: Rig, happens: Callable[[Rig], Any], kind: type[TrainerError], message: str
) -> None:
    happens(rig)
    failure = rig.watch.failure()
    assert type(failure) is kind
    assert message in str(failure)
    assert rig.stopped.is_set()
    with pytest.raises(kind):
        rig.watch.check()
    with pytest.raises(kind):
        rig.watch.expect_shards().result(timeout=240)


def test_shards_are_complete_after_every_rank_has_written(rig: Rig) -> None:
    saving = rig.watch.expect_shards()
    rig.watch.abandon()
    rig.ranks[0].send(("written", {"a": {"size": 1}}))
    wait_until(lambda: rig.watch._written)
    assert not saving.done()
    assert not rig.stopped.is_set(), "ranks that write a checkpoint are not stopped"
    rig.ranks[1].send(("written", {"b": {"size": 2}}))
    assert saving.result(timeout=240) == {"a": {"size": 1}, "b": {"size": 2}}
    assert isinstance(rig.watch.failure(), UpdateAbandonedError)


def test_a_failed_shard_write_is_raised_after_a_lost_rank_is_ruled_out(rig: Rig) -> None:
    saving = rig.watch.expect_shards()
    rig.ranks[1].send(("unwritten", "no space left"))
    wait_until(lambda: rig.watch._unwritten)
    assert not saving.done()
    rig.now += 10.0
    rig.ranks[0].send(("alive", None))
    with pytest.raises(CheckpointError, match="rank 1 cannot write its shards: no space left"):
        saving.result(timeout=240)
    rig.watch.check()


def test_rank_listener_rejects_a_wrong_key() -> None:
    listener = RankListener(b"the key of the ranks")
    host, port = listener.address.split(":")
    assert host == "127.0.0.1"
    accepted: list[Any] = []
    accepting = threading.Thread(target=lambda: accepted.append(listener.accept(60)))
    accepting.start()
    with pytest.raises(AuthenticationError):
        Client((host, int(port)), authkey=b"another key of somebody")
    accepting.join()
    assert accepted == [None]
    listener.close()
