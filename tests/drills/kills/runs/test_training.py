"""Training engines killed or stopped at any moment: the results match an uninterrupted run."""

from __future__ import annotations

import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.fakes.ingest_server import ingest_server
from tests.integration import toy_yard
from tests.integration.toy_records import assert_same_state, expected_keys, of_type, sandboxes, weights
from tests.integration.toy_yard import PATIENCE_S, engine_process, events, finish, make_run_dir, wait_for


@pytest.fixture(scope="module")
def uninterrupted(home: Path) -> Path:
    """An undisturbed training run that samples eight rollouts at a time."""
    return finish(make_run_dir(home, "uninterrupted", toy_yard.training(home)))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_run_killed_at_random_moments_matches_an_uninterrupted_run(
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
        assert epoch > 1, "no attempt was killed"
        assert [event["seq"] for event in server.events] == list(range(1, len(events(run_dir)) + 1))
        assert Counter(server.terminal_keys()) == expected_keys(home)
    assert weights(run_dir) == weights(uninterrupted)
    assert_same_state(run_dir, uninterrupted)
    assert sandboxes(home) == []


def _run_and_kill(run_dir: Path, *, after_lines: int | None) -> bool:
    """Run the next attempt and kill it after ``after_lines`` events; return whether it finished."""
    with engine_process(run_dir) as process:
        if after_lines is None or not wait_for(process, lambda: len(events(run_dir)) >= after_lines):
            assert process.wait(timeout=PATIENCE_S) == 0
            return True
        process.kill()
        status = process.wait()
        assert status in (0, -signal.SIGKILL)  # it may have finished just before
    return status == 0


def test_run_stopped_during_an_update_resumes_to_the_same_weights(home: Path) -> None:
    """A stop abandons the update at a microbatch; none of its changes are on disk."""
    config = toy_yard.training(home, tokens_per_microbatch=64)
    run_dir = make_run_dir(home, "stopped-in-update", config)

    def collected() -> bool:
        finished = of_type(run_dir, "trajectory_finished")
        return len([event for event in finished if event["ref"]["phase"] == "train"]) == 8

    with engine_process(run_dir) as process:
        assert wait_for(process, collected)
        process.terminate()
        assert process.wait(timeout=PATIENCE_S) == 0
    assert events(run_dir)[-1]["state"] == "stopped"
    finish(make_run_dir(home, "stopped-in-update", config, epoch=2))
    whole = finish(make_run_dir(home, "whole", config))
    assert weights(run_dir) == weights(whole)
    assert_same_state(run_dir, whole)
