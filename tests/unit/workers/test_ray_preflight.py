"""Resources that a Ray cluster lacks for a run."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config.launcher import RayConfig
from engine.config.learning.trainer import OptimizationConfig
from engine.config.placement import rank_bundles, ranks_use_gpus, server_bundles
from engine.config.policies import VllmConfig
from workers.launchers.ray.jobs import Cluster
from workers.launchers.ray.preflight import missing, unreachable_web

NODES = ({"CPU": 8.0, "GPU": 2.0, "memory": 64e9}, {"CPU": 32.0, "GPU": 2.0, "memory": 16e9, "fast": 1.0})


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, []),
        ({"cpus": 32, "gpus": 2, "resources": {"fast": 1}}, []),
        ({"gpus": 3}, ["launcher.ray.gpus: asks 3 GPUs on one node, the largest node has 2"]),
        (
            {"cpus": 64, "memory_gb": 100, "resources": {"H100": 1}},
            [
                "launcher.ray.cpus: asks 64 CPUs, the cluster has 40",
                "launcher.ray.memory_gb: asks 100.0 GB of memory, the cluster has 80.0 GB",
                "launcher.ray.resources: asks 1 'H100', the cluster has 0",
            ],
        ),
        (
            {"cpus": 16, "memory_gb": 32},
            ["launcher.ray: asks 16 CPUs, 32.0 GB of memory, but no single node has all of it"],
        ),
    ],
)
def test_missing_resources_are_reported_with_their_setting(asked: dict[str, Any], found: list[str]) -> None:
    problems = missing(RayConfig(**asked), Cluster("2.60.0", NODES))
    assert [str(problem) for problem in problems] == found


@pytest.mark.parametrize(("version", "old"), [("2.9.3", True), ("", True), ("2.50.0", False)])
def test_unsupported_ray_versions_are_reported(version: str, old: bool) -> None:
    problems = [str(problem) for problem in missing(RayConfig(), Cluster(version, NODES))]
    named = version or "of an unknown version"
    expected = f"launcher.ray.address: the cluster runs Ray {named}; 2.50 or newer is needed"
    assert problems == ([expected] if old else [])


@pytest.mark.parametrize(
    ("trainer", "own", "found"),
    [
        (
            {"data_parallel": 2, "context_parallel": 4},
            {},
            ["asks 2 × 4 GPUs packed, the largest node has 2"],
        ),
        (
            {"data_parallel": 5},
            {},
            ["asks 5 × 1 GPU packed, the cluster has room for 4 beside the run's own 1 CPU"],
        ),
        ({"data_parallel": 20, "device": "cpu"}, {"cpus": 0}, []),
        (
            {"data_parallel": 20, "device": "cpu"},
            {"cpus": 1},
            ["asks 20 × 2 CPUs packed, the cluster has room for 19 beside the run's own 1 CPU"],
        ),
    ],
)
def test_ranks_that_do_not_fit_are_reported(
    trainer: dict[str, Any], own: dict[str, Any], found: list[str]
) -> None:
    config = OptimizationConfig(launcher="ray", **trainer)
    bundles = rank_bundles(config, gpus=ranks_use_gpus(config, cluster_has=True))
    problems = missing(RayConfig(**own), Cluster("2.60.0", NODES), [bundles])
    assert [problem.message for problem in problems] == found
    size = "context" if config.context_parallel > 1 else "data"
    assert {problem.setting for problem in problems} <= {f"trainer.{size}_parallel"}


@pytest.mark.parametrize(
    ("ranks", "servers", "found"),
    [
        (2, {"replicas": 2}, []),
        (
            2,
            {"replicas": 3},
            ["asks 3 × 1 GPU spread, the cluster has room for 2 beside the run's own 2 × 1 GPU packed"],
        ),
    ],
)
def test_servers_that_do_not_fit_beside_the_ranks_are_reported(
    ranks: int, servers: dict[str, Any], found: list[str]
) -> None:
    trainer = OptimizationConfig(launcher="ray", data_parallel=ranks)
    bundles = [rank_bundles(trainer, gpus=True), server_bundles(VllmConfig(**servers), gpus=True)]
    problems = missing(RayConfig(cpus=0), Cluster("2.60.0", NODES), bundles)
    assert [problem.message for problem in problems] == found


def test_cluster_without_nodes_is_reported() -> None:
    (problem,) = missing(RayConfig(), Cluster("2.60.0", ()))
    assert "no node that is alive" in problem.message


@pytest.mark.parametrize(
    ("web", "cluster", "refused"),
    [
        ("http://127.0.0.1:8000", "http://head.example.org:8265", True),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8265", False),
        ("http://10.0.0.2:8000", "http://10.0.0.1:8265", False),
    ],
)
def test_loopback_web_server_is_refused_for_a_remote_cluster(web: str, cluster: str, refused: bool) -> None:
    problem = unreachable_web(web, cluster)
    assert (problem is not None) is refused
    assert problem is None or "TRAINYARD_WEB_URL" in problem.message
