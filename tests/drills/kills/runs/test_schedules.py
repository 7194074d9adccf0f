"""Kills of training runs that collect during updates: no rollout is lost or duplicated."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from engine.config.learning.training import CurriculumConfig
from tests.integration.toy_records import (
    assert_every_rollout_trained_once,
    of_type,
    sandboxes,
    weights,
)
from tests.integration.toy_yard import engine_process, events, finish, make_run_dir, overlapping, wait_for

ITERATIONS = 4


@pytest.mark.parametrize("after", [10, 40, 75])
def test_killed_async_run_loses_and_duplicates_no_rollout(home: Path, after: int) -> None:
    config = overlapping(home, mode="async", max_staleness=2)
    if after == 40:
        weighted = CurriculumConfig(mode="solve_rate", rest_passes=1)
        config = config.model_copy(update={"curriculum": weighted})
    name = f"killed-{after}"
    run_dir = make_run_dir(home, name, config)
    with engine_process(run_dir) as process:
        assert wait_for(process, lambda: len(events(run_dir)) >= after)
        process.kill()
        assert process.wait() == -signal.SIGKILL
    finished = {
        tuple(event["ref"].values())
        for event in of_type(run_dir, "trajectory_finished")
        if event["ref"]["phase"] == "train" and event["reward"] is not None
    }
    known = len(events(run_dir))
    make_run_dir(home, name, config, epoch=2)
    finish(run_dir)
    started = [event for event in events(run_dir)[known:] if event["type"] == "run_started"]
    assert started[0]["rollouts_kept"] is not None
    assert_every_rollout_trained_once(run_dir, iterations=ITERATIONS)
    restarted = {
        tuple(event["ref"].values())
        for event in events(run_dir)[known:]
        if event["type"] == "trajectory_started"
    }
    assert not finished & restarted, "finished rollouts were kept"
    assert sandboxes(home) == []
    if after != 40:  # repeating a run once is enough
        return
    copied = make_run_dir(home, f"{name}-again", config, epoch=3)
    shutil.copy(run_dir / "events.jsonl", copied / "events.jsonl")
    finish(copied)
    assert weights(copied) == weights(run_dir)


def test_one_step_off_schedule_trains_tasks_in_order(home: Path) -> None:
    run_dir = finish(make_run_dir(home, "off", overlapping(home, mode="one_step_off", on_update="restart")))
    assert_every_rollout_trained_once(run_dir, iterations=ITERATIONS)
    batches = of_type(run_dir, "batch_selected")
    assert [[group["iteration"] for group in event["groups"]] for event in batches] == [[0], [1], [2], [3]]
    finished = of_type(run_dir, "iteration_finished")
    assert max(event["metrics"]["staleness/max"] for event in finished) <= 1
    assert {event["metrics"]["staleness/mixed_share"] for event in finished} == {0.0}
