"""Trainer ranks on two nodes of a real Ray cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from engine.models.loader import open_model
from engine.trainer.checkpoints.checkpoint import Checkpoint, load_latest
from tests.builders.ray_clusters import RayCluster
from workers.launchers.base import PROJECT

pytestmark = pytest.mark.timeout(600)
ITERATIONS = 8
SCRIPT = "tests.unit.trainer.builders.rl_training_script"
THREADS = 2
"""The CPUs of a node, so that each rank takes a whole node."""


def training(
    cluster: RayCluster, run_dir: Path, launcher: str, *, held_after: int = 0
) -> subprocess.Popen[str]:
    run_dir.mkdir(exist_ok=True)
    arguments = (run_dir, ITERATIONS, 2, THREADS, launcher, held_after)
    return subprocess.Popen(
        [sys.executable, "-m", SCRIPT, *map(str, arguments)],
        cwd=PROJECT,
        env=os.environ | cluster.environment(),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(condition: Callable[[], Any], description: str, within_s: float = 240.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"never: {description}"
        time.sleep(0.05)


def latest(run_dir: Path) -> Checkpoint:
    checkpoint = load_latest(run_dir)
    assert checkpoint is not None
    return checkpoint


def iterations(run_dir: Path) -> int:
    checkpoint = load_latest(run_dir) if run_dir.exists() else None
    return checkpoint.iteration if checkpoint else 0


def weights(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    return dict(open_model(str(checkpoint.path), home=checkpoint.path).model.state_dict())


def test_killed_run_with_ranks_on_two_nodes_matches_a_local_run(cluster: RayCluster, tmp_path: Path) -> None:
    if cluster.num_started == 1:
        cluster.start_node({"other": 1})
    local, spread = tmp_path / "local", tmp_path / "spread"
    reference = training(cluster, local, "local")

    def attempt(kill: Callable[[subprocess.Popen[str]], None]) -> str:
        """Start an attempt and kill it after one more iteration; return its output."""
        held_after = iterations(spread) + 1
        process = training(cluster, spread, "ray", held_after=held_after)
        until(lambda: iterations(spread) == held_after or process.poll() is not None, "an iteration")
        ranks = [cluster.ranks(node) for node in range(2)]
        assert [len(on_node) for on_node in ranks] == [1, 1], "one rank on each node"
        assert {on_node[0].environ().get("OMP_WAIT_POLICY") for on_node in ranks} == {"PASSIVE"}
        assert process.stdin is not None
        process.stdin.write("go on\n")
        process.stdin.flush()
        kill(process)
        printed = process.communicate(timeout=240)[1]
        assert process.returncode != 0
        _, left = psutil.wait_procs([rank for on_node in ranks for rank in on_node], timeout=240)
        assert not left
        return printed

    printed = attempt(lambda _process: cluster.kill_raylet())
    assert "RankLostError: rank" in printed, printed
    cluster.start_node({"other": 1})
    attempt(lambda process: process.kill())
    for ended in (training(cluster, spread, "ray"), reference):
        printed = ended.communicate(timeout=240)[1]
        assert ended.returncode == 0, printed
    ours, theirs = latest(spread), latest(local)
    assert ours.iteration == theirs.iteration == ITERATIONS
    assert ours.cursor == theirs.cursor, "the metrics of all iterations"
    expected = weights(theirs)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(ours).items())
