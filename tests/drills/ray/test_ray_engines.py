"""Inference servers on two nodes of a real Ray cluster, one of which is lost."""

from __future__ import annotations

import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.types import INFRASTRUCTURE_REASONS
from tests.builders.cluster_engines import evaluation, events, servers
from tests.builders.ray_clusters import RayCluster
from tests.fakes.vllm_server import fake_interpreter
from tests.unit.environments.lake_builders import LAKE

pytestmark = pytest.mark.timeout(600)
SAMPLES = 48
TOKEN_S = 0.2
"""Sampling takes at least half a minute, so that a fast machine also loses the node before the end."""


def until(condition: Callable[[], Any], run: subprocess.Popen[str]) -> Any:
    deadline = time.monotonic() + 240
    while not (value := condition()):
        assert run.poll() is None, run.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return value


def test_servers_spread_over_nodes_and_move_when_one_is_lost(cluster: RayCluster, tmp_path: Path) -> None:
    if cluster.num_started == 1:
        cluster.start_node({"other": 1})
    python = fake_interpreter(tmp_path / "fake", token_s=TOKEN_S)
    run = evaluation(cluster, tmp_path, python=python, replicas=2, samples=SAMPLES)
    try:
        until(lambda: (tmp_path / "runs").exists() and events(tmp_path, "step_finished"), run)
        started = [servers(cluster, node) for node in range(2)]
        assert [len(on_node) for on_node in started] == [1, 1]
        for (server,) in started:
            environment = server.environ()
            assert "OPENAI_API_KEY" not in environment
            assert not any("RAY_AUTH_TOKEN" in name for name in environment)
        cluster.kill_raylet()
        printed = run.communicate(timeout=400)[0]
        assert run.returncode == 0, printed
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
    _, left = psutil.wait_procs([process for on_node in started for process in on_node], timeout=240)
    assert not left
    restarted = [event for event in events(tmp_path, "alert") if event["code"] == "engine_restarted"]
    assert len(restarted) == 1
    finished = events(tmp_path, "trajectory_finished")
    rollouts = Counter((event["ref"]["task_id"], event["ref"]["index"]) for event in finished)
    assert len(rollouts) == SAMPLES * LAKE["heldout_maps"]
    assert set(rollouts.values()) == {1}
    assert not INFRASTRUCTURE_REASONS & {event["termination"] for event in finished}
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert {log.name for log in (run_dir / "engines").glob("*.log")} == {"engine-0.log", "engine-1.log"}
