"""Rollout workers on two nodes of a real Ray cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import psutil
import pytest

from tests.builders.ray_clusters import RayCluster
from tests.drills.ray.workers_script import SIBLINGS, WORKERS
from workers.launchers.base import PROJECT

pytestmark = pytest.mark.timeout(600)


def rollout_workers(cluster: RayCluster, node: int) -> list[psutil.Process]:
    command = ["-m", "engine.rollout.processes"]
    return [process for arguments, process in cluster.processes(node) if arguments[1:] == command]


def test_workers_spread_over_the_nodes_and_a_killed_one_loses_no_rollout(cluster: RayCluster) -> None:
    if cluster.num_started == 1:
        cluster.start_node({"other": 1})
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.drills.ray.workers_script"],
        cwd=PROJECT,
        env=os.environ | cluster.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        lines = iter(process.stdout)
        assert "acting\n" in lines
        workers = [rollout_workers(cluster, node) for node in range(2)]
        assert [len(on_node) for on_node in workers] == [WORKERS // 2, WORKERS // 2]
        workers[1][0].kill()
        process.stdin.write("go on\n")
        process.stdin.flush()
        rewards, starts = json.loads(list(lines)[-1])
        assert process.wait(timeout=240) == 0
    finally:
        process.kill()
        process.wait()
    assert rewards == [1.0] * SIBLINGS
    lost = SIBLINGS // WORKERS
    assert starts == [1] * (SIBLINGS - lost) + [2] * lost
    assert not psutil.wait_procs([worker for on_node in workers for worker in on_node], timeout=240)[1]
