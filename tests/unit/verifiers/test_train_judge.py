"""Runs that train a judge on graded trajectories, and the verifier's run that uses it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config.recipes import resolve
from engine.config.run import AnyRun
from engine.datasets.store import save_dataset
from engine.events.delivery.spool import SpoolSink
from engine.events.types import RunStarted
from engine.orchestrator import execute
from tests.builders.rollout_builders import make_row
from tests.builders.verifier_builders import Source, by_model, events, roll_out
from tests.integration.toy_yard import open_context

TASKS = tuple(f"{letter * 16}" for letter in "abcdefgh")
HELDOUT = "k" * 16


def trained(home: Path, settings: Mapping[str, Any] | None = None, *, epoch: int = 1) -> dict[str, Any]:
    """Perform a run that trains a judge; return its terminal event."""
    given = {
        "judgements.on_policy": ["7"], "judgements.part": "patch", "trainer.start": "fresh:tiny",
        "trainer.max_tokens": 1024, "trainer.tokens_per_microbatch": 4096, "trainer.precision": "f32",
        "trainer.activation_checkpointing": False, "trainer.lora_rank": 0, "trainer.lora_targets": [],
        "trainer.batch_size": 2, "trainer.learning_rate": 3e-3, "trainer.threads": 1,
        "trainer.heldout_share": 0.2, "trainer.epochs": 8, **(settings or {}),
    }  # fmt: skip
    return perform(home, "9", resolve("train-judge", given), epoch=epoch)


def perform(home: Path, name: str, config: AnyRun, *, epoch: int = 1) -> dict[str, Any]:
    with open_context(home, name, config, epoch=epoch) as run:
        execute(config, run)
    return events(home, name)[-1]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a data folder with runs whose right and wrong patches differ in a word."""
    torch.set_num_threads(1)
    for name in ("7", "8"):
        source = Source(tmp_path, name)
        with source.attempt() as sink:
            for task in TASKS:
                for passed in (True, False):
                    patch = f"+ {'right' if passed else 'wrong'} {task[0]}\n" * 30
                    roll_out(sink, task, int(passed), passed=passed, patch=patch)
    save_dataset(tmp_path, "toy", [make_row(task) for task in TASKS], {})
    return tmp_path


def test_a_trained_judge_separates_right_from_wrong_patches(home: Path) -> None:
    ended = trained(home)
    assert ended["state"] == "succeeded", ended
    summary = ended["summary"]
    assert (summary["train_trajectories"], summary["heldout_trajectories"]) == (12, 4)
    assert summary["heldout_loss"] < summary["heldout_loss_before"]
    judge = {"policy.checkpoint": "run:9", "verifier.runs": ["8"], "verifier.part": "patch"}
    judged = perform(home, "v", by_model(**judge, **{"verifier.max_context": 1024}))["summary"]
    assert (judged["scored"], judged["auc"]) == (16, 1.0)


def grow(home: Path, tasks: tuple[str, ...], *, phase: str = "train", **started: Any) -> None:
    """Add a right and a wrong trajectory of each task to a source."""
    with closing(SpoolSink(home / "runs" / "7", epoch=2)) as sink:
        sink.emit(RunStarted, host="h", pid=1, **started)
        for task in tasks:
            for passed in (True, False):
                roll_out(sink, task, int(passed), passed=passed, phase=phase, patch="+ a patch")


def test_heldout_tasks_and_evaluations_are_used_only_if_selected(home: Path) -> None:
    rows = [make_row(task) for task in TASKS] + [replace(make_row(HELDOUT), split="heldout")]
    save_dataset(home, "toy", rows, {})
    grow(home, (HELDOUT,), resumed_from=1)
    grow(home, (TASKS[0],), phase="eval:heldout", resumed_from=1)
    short = {"trainer.epochs": 1, "judgements.part": "patch"}
    summary = trained(home, short)["summary"]
    assert summary["train_trajectories"] + summary["heldout_trajectories"] == 2 * len(TASKS)
    assert not events(home, "9", "alert")
    (home / "runs" / "9").rename(home / "runs" / "before")
    summary = trained(home, {**short, "judgements.splits": ["train", "heldout"]})["summary"]
    assert summary["train_trajectories"] + summary["heldout_trajectories"] == 2 * len(TASKS) + 2
    (alert,) = events(home, "9", "alert")
    assert alert["code"] == "judge_of_other_splits"


def test_a_later_attempt_resumes_the_checkpoint_with_the_same_trajectories(home: Path) -> None:
    first = trained(home, {"trainer.epochs": 1})["summary"]
    steps = len(events(home, "9", "iteration_finished"))
    others = tuple(letter * 16 for letter in "mnopq")
    save_dataset(home, "toy", [make_row(task) for task in TASKS + others], {})
    grow(home, others, resumed_from=1)
    again = trained(home, {"trainer.epochs": 1}, epoch=2)
    assert again["state"] == "succeeded", again
    assert events(home, "9", "run_started")[-1]["resumed_from"] == steps
    assert len(events(home, "9", "iteration_finished")) == steps
    for name in ("train_trajectories", "heldout_trajectories"):
        assert again["summary"][name] == first[name]
    grow(home, TASKS[:1], resumed_from=0)
    ended = trained(home, {"trainer.epochs": 1}, epoch=3)
    assert ended["state"] == "failed"
    assert "of the 16 trajectories that the first attempt chose are gone" in ended["reason"]


def test_versions_of_a_task_are_held_out_together(home: Path) -> None:
    versions = tuple(task[:4] + "z" * 12 for task in TASKS)  # ids of rows of the same instances
    save_dataset(home, "versions", [make_row(task) for task in versions], {})
    source = home / "runs" / "8"
    (source / "config.json").write_text(json.dumps({"seed": 0, "dataset": {"name": "versions"}}))
    with closing(SpoolSink(source, epoch=2)) as sink:
        for task in versions:
            for passed in (True, False):
                roll_out(sink, task, int(passed), passed=passed, patch="+ a patch")
    assert trained(home, {"trainer.epochs": 1, "judgements.on_policy": ["7", "8"]})["state"] == "succeeded"
    learned = {task for event in events(home, "9", "iteration_started") for task in event["task_ids"]}
    assert len(learned) == 2 * 6
    assert {task[:4] for task in learned & set(TASKS)} == {task[:4] for task in learned & set(versions)}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"judgements.on_policy": []}, "judgements.on_policy: no run is named"),
        ({"judgements.off_policy": ["404"]}, "judgements.off_policy: there is no run '404'"),
        ({"judgements.phases": ["eval:heldout"]}, "no graded trajectories in these phases"),
        ({"trainer.max_tokens": 300}, "no pair of a right and a wrong trajectory is left"),
    ],
)
def test_untrainable_configurations_fail_with_the_reason(
    home: Path, settings: dict[str, Any], message: str
) -> None:
    ended = trained(home, settings)
    assert ended["state"] == "failed"
    assert message in ended["reason"]
