"""Runs whose inference servers are on a Ray cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from tests.builders.ray_clusters import RayCluster
from tests.builders.web.event_builders import spooled
from tests.unit.environments.lake_builders import LAKE
from workers.launchers.base import PROJECT

_MODULE = "vllm.entrypoints.openai.api_server"


def evaluation(
    cluster: RayCluster, home: Path, *, python: Path, replicas: int, samples: int
) -> subprocess.Popen[str]:
    """Start an evaluation like the process of a job.

    Args:
        cluster: cluster of the servers.
        home: data folder of the run.
        python: interpreter with vLLM, or a fake of it.
        replicas: number of servers.
        samples: rollouts of each held-out map.
    """
    settings = {
        **{f"environment.{name}": value for name, value in LAKE.items()},
        "policy.checkpoint": "fresh:frozenlake", "policy.engine": "vllm", "policy.vllm.launcher": "ray",
        "policy.vllm.replicas": replicas, "policy.vllm.python": python, "policy.vllm.cpu_cache_gib": 0.25,
        "rollout.group_size": samples, "rollout.max_concurrent": 8,
    }  # fmt: skip
    chosen = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    return subprocess.Popen(
        [sys.executable, "-m", "engine.run", "--recipe", "frozenlake-evaluate", "--home", home, *chosen],
        cwd=PROJECT,
        env=os.environ | cluster.environment() | {"OPENAI_API_KEY": "of the run's process alone"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def servers(cluster: RayCluster, node: int) -> list[psutil.Process]:
    """Return the servers on a node."""
    return [process for command, process in cluster.processes(node) if command[1:3] == ["-m", _MODULE]]


def events(home: Path, kind: str) -> list[dict[str, Any]]:
    """Return the events of a type of the only run."""
    (run_dir,) = (home / "runs").iterdir()
    return spooled(run_dir, kind)
