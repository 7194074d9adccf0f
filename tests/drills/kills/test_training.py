"""Training engines that are killed, stopped or paused at any moment: they end as if nothing had happened."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.fakes.ingest_server import IngestServer, ingest_server
from tests.integration import toy_yard
from tests.integration.toy_records import assert_same_state, expected_keys, of_type, sandboxes, weights
from tests.integration.toy_yard import engine_process, events, make_run_dir, wait_for

_PATIENCE_S = 400.0


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with the toy dataset and its half-taught policy."""
    return toy_yard.taught_home(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def uninterrupted(home: Path) -> Path:
    """A training run that nobody disturbed, its rollouts sampled eight at a time."""
    run_dir = make_run_dir(home, "uninterrupted", toy_yard.training(home))
    with engine_process(run_dir) as process:
        assert process.wait(timeout=_PATIENCE_S) == 0
    return run_dir


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_killed_at_any_moment_it_ends_as_if_nothing_happened(
    home: Path, uninterrupted: Path, seed: int
) -> None:
    rng = random.Random(seed)
    with ingest_server() as server:
        for epoch in range(1, 20):
            server.epoch = epoch
            run_dir = make_run_dir(
                home,
                f"killed-{seed}",
                toy_yard.training(home),
                ingest_url=server.url,
                epoch=epoch,
            )
            lines = len(events(run_dir)) + rng.randrange(1, 90)
            if _run_and_kill(run_dir, after_lines=lines if epoch <= 2 else None):
                break
        assert [event["seq"] for event in server.events] == list(range(1, len(events(run_dir)) + 1))
        assert Counter(server.terminal_keys()) == expected_keys(home)
    assert weights(run_dir) == weights(uninterrupted)
    assert_same_state(run_dir, uninterrupted)
    assert sandboxes(home) == []


def _run_and_kill(run_dir: Path, *, after_lines: int | None) -> bool:
    """Run the next attempt, killing it once the spool has so many events; whether it finished."""
    with engine_process(run_dir) as process:
        if after_lines is None or not wait_for(process, lambda: len(events(run_dir)) >= after_lines):
            assert process.wait(timeout=_PATIENCE_S) == 0
            return True
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    return False


def test_stopped_about_an_update_and_resumed_it_ends_as_if_nothing_happened(home: Path) -> None:
    """A stop abandons an update at a microbatch: what it had changed is nowhere on disk."""
    config = toy_yard.training(home, tokens_per_microbatch=64)
    run_dir = make_run_dir(home, "stopped-in-update", config)

    def collected() -> bool:
        finished = of_type(run_dir, "trajectory_finished")
        return len([event for event in finished if event["ref"]["phase"] == "train"]) == 8

    with engine_process(run_dir) as process:
        assert wait_for(process, collected)
        process.terminate()
        assert process.wait(timeout=_PATIENCE_S) == 0
    assert events(run_dir)[-1]["state"] == "stopped"
    make_run_dir(home, "stopped-in-update", config, epoch=2)
    with engine_process(run_dir) as process:
        assert process.wait(timeout=240) == 0
    whole = make_run_dir(home, "whole", config)
    with engine_process(whole) as process:
        assert process.wait(timeout=240) == 0
    assert weights(run_dir) == weights(whole)
    assert_same_state(run_dir, whole)


def test_pause_resume_and_stop_from_the_web(home: Path) -> None:
    with ingest_server() as server:
        run_dir = make_run_dir(home, "paused", toy_yard.training(home, iterations=500), ingest_url=server.url)
        with engine_process(run_dir) as process:
            assert wait_for(process, lambda: _count(server, "iteration_finished") >= 1)
            server.desired = "pause"
            assert wait_for(process, lambda: _count(server, "run_paused") == 1)
            time.sleep(0.5)
            # The pool's last report comes up to 2 s after what it tells of.
            assert _work(server)[-1] == "run_paused"
            server.desired = "run"
            assert wait_for(process, lambda: _count(server, "run_resumed") == 1)
            server.desired = "stop"
            assert process.wait(timeout=_PATIENCE_S) == 0
        assert server.events[-1]["state"] == "stopped"


def _work(server: IngestServer) -> list[str]:
    """Types of the events, but for reports about sandboxes."""
    types = [event["type"] for event in server.events]
    return [name for name in types if name not in ("sandboxes_changed", "pool_status")]


def _count(server: IngestServer, name: str) -> int:
    with server.lock:
        return sum(event["type"] == name for event in server.events)
