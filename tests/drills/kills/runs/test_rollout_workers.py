"""Runs with rollout worker processes: real sandboxes, real sampling, kills and stops."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path

import psutil

from engine.config.run import TrainRun
from tests.drills.kills.runs.test_training import uninterrupted
from tests.integration import toy_yard
from tests.integration.toy_records import assert_same_state, expected_keys, of_type, sandboxes, weights
from tests.integration.toy_yard import PATIENCE_S, engine_process, events, make_run_dir, wait_for

__all__ = ["uninterrupted"]  # a fixture


def with_workers(data: Path) -> TrainRun:
    config = toy_yard.training(data)
    return config.model_copy(update={"rollout": config.rollout.model_copy(update={"workers": 2})})


def workers(engine: subprocess.Popen[bytes]) -> list[psutil.Process]:
    running = []
    for process in psutil.Process(engine.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # the process has just ended
            if process.cmdline()[1:] == ["-m", "engine.rollout.processes"]:
                running.append(process)
    return running


def busy_workers(data: Path, engine: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Return the workers that have a sandbox of a training rollout."""
    owners = set()
    for path in sandboxes(data):
        try:
            entry = json.loads(path.read_text())
        except FileNotFoundError:
            continue
        if entry["name"].startswith("train/"):
            owners.add(entry["owner_pid"])
    return [worker for worker in workers(engine) if worker.pid in owners]


def test_killed_worker_changes_neither_rollouts_nor_weights(home: Path, uninterrupted: Path) -> None:
    run_dir = make_run_dir(home, "workers", with_workers(home))
    victims: list[psutil.Process] = []

    def is_busy() -> bool:
        victims[:] = busy_workers(home, process)
        return bool(victims)

    with engine_process(run_dir) as process:
        assert wait_for(process, is_busy)
        victims[0].kill()
        assert process.wait(timeout=PATIENCE_S) == 0
    assert b'"rollout_worker_lost"' in (run_dir / "engine.log").read_bytes()
    keys = Counter(tuple(e["ref"].values()) for e in of_type(run_dir, "trajectory_finished"))
    assert keys == expected_keys(home), "every rollout is reported once"
    assert weights(run_dir) == weights(uninterrupted)
    assert_same_state(run_dir, uninterrupted)
    assert sandboxes(home) == []


def test_stop_ends_worker_processes_and_their_rollouts(home: Path) -> None:
    run_dir = make_run_dir(home, "stopped-workers", with_workers(home))
    with engine_process(run_dir) as process:
        assert wait_for(process, lambda: bool(busy_workers(home, process)))
        started = workers(process)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(timeout=PATIENCE_S) == 0
    assert len(started) == 2
    assert not psutil.wait_procs(started, timeout=240)[1]
    assert events(run_dir)[-1]["state"] == "stopped"
    started_keys = {str(event["ref"]) for event in of_type(run_dir, "trajectory_started")}
    assert started_keys == {str(event["ref"]) for event in of_type(run_dir, "trajectory_finished")}
    assert sandboxes(home) == []
