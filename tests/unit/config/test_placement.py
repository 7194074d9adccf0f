"""Resources that runs reserve on a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config.learning.trainer import OptimizationConfig
from engine.config.placement import rank_bundles, ranks_use_gpus, run_bundles, server_bundles
from engine.config.policies import VllmConfig
from engine.config.recipes import resolve

SERVERS = {"policy.engine": "vllm", "policy.vllm.launcher": "ray", "policy.vllm.replicas": 2}


@pytest.mark.parametrize(
    ("settings", "gpus", "count", "resources", "words"),
    [
        ({"data_parallel": 2, "threads": 1}, False, 2, {"CPU": 1}, "2 × 1 CPU packed"),
        (
            {"data_parallel": 2, "context_parallel": 4, "threads": 2},
            True,
            2,
            {"CPU": 8, "GPU": 4},
            "2 × 4 GPUs packed",
        ),
    ],
)
def test_context_parallel_ranks_share_a_node(
    settings: dict[str, Any], gpus: bool, count: int, resources: dict[str, float], words: str
) -> None:
    bundles = rank_bundles(OptimizationConfig(**settings), gpus=gpus)
    assert (bundles.count, bundles.resources, str(bundles)) == (count, resources, words)


@pytest.mark.parametrize(
    ("gpus", "resources", "words"),
    [(True, {"CPU": 4, "GPU": 4}, "3 × 4 GPUs spread"), (False, {"CPU": 4}, "3 × 4 CPUs spread")],
)
def test_each_server_has_the_devices_of_one_node(gpus: bool, resources: dict[str, float], words: str) -> None:
    bundles = server_bundles(VllmConfig(launcher="ray", replicas=3, tensor_parallel=4), gpus=gpus)
    assert (bundles.count, bundles.resources, str(bundles)) == (3, resources, words)


@pytest.mark.parametrize(
    ("device", "cluster_has", "uses"),
    [("auto", True, True), ("auto", False, False), ("cuda", False, True), ("cpu", True, False)],
)
def test_ranks_use_gpus_by_setting_and_availability(device: Any, cluster_has: bool, uses: bool) -> None:
    assert ranks_use_gpus(OptimizationConfig(device=device), cluster_has=cluster_has) is uses


@pytest.mark.parametrize(
    ("recipe", "settings", "counts"),
    [
        ("quickstart", {}, []),
        ("quickstart", {"trainer.launcher": "ray"}, [1]),
        ("quickstart", {"rollout.launcher": "ray", "rollout.workers": 3}, [3]),
        ("quickstart", {"policy.engine": "vllm"}, []),
        ("quickstart", {"trainer.launcher": "ray", **SERVERS}, [1, 2]),
        ("quickstart-evaluate", SERVERS, [2]),
        ("fine-tune", {"trainer.launcher": "ray", "trainer.data_parallel": 3}, [3]),
        ("quickstart-oracle", {}, []),
    ],
)
def test_only_runs_with_cluster_processes_reserve_cluster_resources(
    recipe: str, settings: dict[str, Any], counts: list[int]
) -> None:
    reserved = run_bundles(resolve(recipe, settings), cluster_has_gpus=False)
    assert [bundles.count for bundles in reserved] == counts
