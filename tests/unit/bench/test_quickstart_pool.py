"""Report of runs on the quickstart's pool, from their spools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import quickstart_pool as bench
from bench.quickstart_pool import (
    Curve,
    compared,
    deliberate,
    rates,
    read_curve,
)
from engine.config.recipes import resolve
from engine.config.run import CurateRun, TrainRun


def trajectory(iteration: int, task: str, index: int, **changes: Any) -> dict[str, Any]:
    return {
        "type": "trajectory_finished",
        "ref": {"iteration": iteration, "phase": "eval:heldout", "task_id": task, "index": index},
        "termination": "submitted",
        "verdict": "failed",
        "reward": 0.0,
        "num_steps": 3,
        "generated_tokens": 150,
        **changes,
    }


PASSED = {"verdict": "passed", "reward": 1.0}


def metrics(tokens: float, steps: float) -> dict[str, float]:
    return {
        "tokens/response_mean": tokens,
        "steps/mean": steps,
        "termination/submitted": 0.5,
        "solve/rate": 0.25,
    }


def spool(folder: Path) -> Path:
    """Write a run whose second attempt repeated an iteration and two rollouts of the last evaluation."""
    events = [
        *(trajectory(0, task, index) for task in "ab" for index in (0, 1)),
        trajectory(0, "c", 0, termination="env_error", reward=None, verdict=None),
        trajectory(0, "c", 1, ref={"iteration": 0, "phase": "train", "task_id": "c", "index": 1}),
        {"type": "iteration_finished", "iteration": 0, "metrics": metrics(1.0, 1.0)},
        {"type": "iteration_finished", "iteration": 0, "metrics": metrics(150.0, 3.0)},
        *(trajectory(2, "a", index) for index in (0, 1)),
        *(trajectory(2, "a", index, **PASSED) for index in (0, 1)),
        trajectory(2, "b", 0, **PASSED, termination="max_steps"),
        trajectory(2, "b", 1),
        {"type": "iteration_finished", "iteration": 1, "metrics": metrics(120.0, 4.0)},
    ]
    folder.mkdir()
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


@pytest.fixture
def curve(tmp_path: Path) -> Curve:
    return read_curve(spool(tmp_path / "run"), arm="keep_zero", seed=3)


def test_held_out_attempts_are_read_once_and_training_is_not_among_them(curve: Curve) -> None:
    assert sorted(curve.attempts) == [0, 2]
    assert len(curve.first) == 5
    assert sorted((a.task_id, a.index, a.solved) for a in curve.last) == [
        ("a", 0, True), ("a", 1, True), ("b", 0, True), ("b", 1, False),
    ]  # fmt: skip
    assert [row["tokens/response_mean"] for row in curve.metrics] == [150.0, 120.0]


def test_the_difference_is_that_of_tasks_graded_before_and_after(curve: Curve) -> None:
    found = compared([curve, curve])
    assert found is not None
    assert (found.num_shared, found.rate_first, found.rate_second) == (2, 0.0, 0.75)
    assert deliberate(curve.last) == 0.5
    assert rates(curve.last)["pass@1"] == 0.75
    assert rates(curve.first)["samples"] == 5










def test_the_pool_is_large_and_its_training_run_sees_each_task_once() -> None:
    dataset, run = resolve("quickstart-pool-dataset"), resolve("quickstart-pool")
    assert isinstance(dataset, CurateRun)
    assert isinstance(run, TrainRun)
    assert run.dataset.name == dataset.curation.output
    assert dataset.curation.train_tasks >= 1400
    assert dataset.curation.heldout_tasks >= 128
    assert run.evaluation.samples % dataset.curation.heldout_tasks == 0
    assert run.trainer.iterations * run.trainer.tasks_per_iteration == dataset.curation.train_tasks


def test_arms_differ_in_their_objective_alone() -> None:
    configs = [resolve("quickstart-pool", settings) for settings in bench.ARMS.values()]
    assert len({config.model_dump_json(include={"algorithm"}) for config in configs}) == len(bench.ARMS)
    assert len({config.model_dump_json(exclude={"algorithm"}) for config in configs}) == 1
