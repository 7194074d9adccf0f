"""Report of runs on the quickstart's pool, from their spools."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import quickstart_pool as bench
from bench.quickstart_pool import (
    Curve,
    compared,
    deliberate,
    draw,
    interval,
    rates,
    read_curve,
    summary,
    table,
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


def test_the_picture_shows_each_evaluation_with_its_interval(curve: Curve, tmp_path: Path) -> None:
    low, high = interval(curve.last)
    assert 0 <= low < 0.75 < high <= 1
    draw([curve], tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_the_tables_name_every_run_and_what_training_rollouts_did(curve: Curve) -> None:
    lines = table([curve]).split("\n")
    assert lines[2].startswith("| keep_zero | 3 | 2 | 2 | 0.000 | 0.750 | +0.750 [")
    assert lines[2].endswith("| 2, 0 | 0.000 → 0.500 |")
    # Both iterations are among the first ten and among the last ten.
    assert lines[-1].startswith("| keep_zero | 40 → 40 | 135 → 135 | 3.5 → 3.5 |")
    stored = summary([curve])["keep_zero"]
    assert stored["seeds"]["3"]["heldout"]["2"]["solved and submitted"] == 0.5
    assert json.dumps(stored)


def test_one_common_task_has_no_interval(curve: Curve, tmp_path: Path) -> None:
    one = {number: [own for own in curve.attempts[number] if own.task_id == "a"] for number in curve.attempts}
    single = replace(curve, attempts=one)
    row = table([single]).split("\n")[2]
    assert row.startswith("| keep_zero | 3 | 2 | 1 | 0.000 | 1.000 | +1.000 [–, –] |")
    assert summary([single])["keep_zero"]["difference"] == [1.0, None, None]
    draw([single], tmp_path / "one.png")


def test_an_evaluation_whose_attempts_were_all_lost_has_no_rates(curve: Curve, tmp_path: Path) -> None:
    lost = [replace(attempt, solved=None) for attempt in curve.last]
    unknown = replace(curve, attempts={**curve.attempts, 2: lost})
    lines = table([unknown, curve]).split("\n")
    assert lines[2] == "| keep_zero | 3 | 2 | 0 | – | – | – | – | 0.000 → – |"
    assert lines[4].endswith("| 2, 0 | 0.000 → 0.500 |")
    stored = summary([unknown])["keep_zero"]
    assert (stored["difference"], stored["heldout_tasks"]) == (None, 0)
    assert stored["seeds"]["3"]["heldout"]["2"]["pass@1"] is None
    draw([unknown], tmp_path / "lost.png")
    assert (tmp_path / "lost.png").stat().st_size


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
