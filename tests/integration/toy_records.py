"""Readers of the spool, checkpoints and ledger of a toy run, and assertions on them."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from engine.datasets.store import load_dataset
from tests.integration import toy_yard
from tests.integration.toy_yard import events
from tests.unit.trainer.builders.checkpoint_builders import stored_state


def of_type(run_dir: Path, name: str) -> list[dict[str, Any]]:
    return [event for event in events(run_dir) if event["type"] == name]


def weights(run_dir: Path) -> str:
    """Return a hash of the trained weights and the optimizer state."""
    last = sorted((run_dir / "checkpoints").glob("[0-9]*"))[-1]
    hashed = hashlib.sha256()
    for name, tensor in sorted(stored_state(last).items()):
        hashed.update(name.encode() + tensor.numpy().tobytes())
    return hashed.hexdigest()


def assert_same_state(run_dir: Path, other: Path, *, but: str = "") -> None:
    """Assert equal final training states and cursors, and equal metrics except for ``but``."""
    folders = [sorted((folder / "checkpoints").glob("[0-9]*"))[-1] for folder in (run_dir, other)]
    states = [torch.load(folder / "training.pt", weights_only=True) for folder in folders]
    torch.testing.assert_close(states[0], states[1], rtol=0, atol=0)
    cursors = [json.loads((folder / "cursor.json").read_text()) for folder in folders]
    for cursor in cursors:
        del cursor["progress"]["seconds"]
    assert cursors[0] == cursors[1]
    first_metrics, second_metrics = iteration_metrics(run_dir), iteration_metrics(other)
    assert first_metrics.keys() == second_metrics.keys()
    for iteration, metrics in first_metrics.items():
        differing = set(metrics.items()) ^ set(second_metrics[iteration].items())
        assert {(name, value) for name, value in differing if name != but} == set()


def iteration_metrics(run_dir: Path) -> dict[int, dict[str, float]]:
    """Return each iteration's last metrics, without timings and verdict-cache statistics."""
    timed = (
        "time/",
        "loop/",
        "machine/",
        "sandbox/",
        "grading/",
        "update/seconds",
        "update/tokens_per_s",
        "update/flops_per_s",
        "update/mfu",
    )
    return {
        event["iteration"]: {k: v for k, v in event["metrics"].items() if not k.startswith(timed)}
        for event in of_type(run_dir, "iteration_finished")
    }


def sandboxes(home: Path) -> list[Path]:
    """Return the ledger entries of sandboxes that were not closed."""
    return list((home / "sandboxes").glob("sb-*.json"))


def expected_keys(home: Path) -> Counter[tuple[int, str, str, int]]:
    dataset = load_dataset(home, toy_yard.DATASET)
    train = [row.task.id for row in dataset.split("train")]
    heldout = [row.task.id for row in dataset.split("heldout")]
    keys = [(n, "train", task, index) for n in range(2) for task in train for index in range(4)]
    for completed in (0, 2):
        keys += [(completed, "eval:train", task, 0) for task in train]
        keys += [(completed, "eval:heldout", task, index) for task in heldout for index in range(2)]
    return Counter(keys)


def assert_every_rollout_trained_once(run_dir: Path, *, iterations: int) -> None:
    """Assert that every rollout is in exactly one selected batch and was graded once."""
    batches = {event["iteration"]: event["groups"] for event in of_type(run_dir, "batch_selected")}
    assert sorted(batches) == list(range(iterations))
    trained = Counter(
        (group["iteration"], group["task_id"], index)
        for groups in batches.values()
        for group in groups
        for index in group["indices"]
    )
    assert len(trained) == iterations * 4
    assert set(trained.values()) == {1}
    graded = Counter(
        (event["ref"]["iteration"], event["ref"]["task_id"], event["ref"]["index"])
        for event in of_type(run_dir, "trajectory_finished")
        if event["ref"]["phase"] == "train" and event["reward"] is not None
    )
    assert graded == trained, "no rollout was lost, none was made twice"
