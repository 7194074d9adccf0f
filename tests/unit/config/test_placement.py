"""Resources that runs reserve on a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config.placement import rank_bundles, ranks_use_gpus, run_bundles
from engine.config.recipes import resolve
from engine.config.trainer import OptimizationConfig


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
def test_the_ranks_of_a_context_share_a_node(
    settings: dict[str, Any], gpus: bool, count: int, resources: dict[str, float], words: str
) -> None:
    bundles = rank_bundles(OptimizationConfig(**settings), gpus=gpus)
    assert (bundles.count, bundles.resources, str(bundles)) == (count, resources, words)


@pytest.mark.parametrize(
    ("device", "cluster_has", "uses"),
    [("auto", True, True), ("auto", False, False), ("cuda", False, True), ("cpu", True, False)],
)
def test_ranks_take_the_gpus_that_there_are(device: Any, cluster_has: bool, uses: bool) -> None:
    assert ranks_use_gpus(OptimizationConfig(device=device), cluster_has=cluster_has) is uses


@pytest.mark.parametrize(
    ("recipe", "settings", "count"),
    [
        ("quickstart", {}, None),
        ("quickstart", {"trainer.launcher": "ray"}, 1),
        ("fine-tune", {"trainer.launcher": "ray", "trainer.data_parallel": 3}, 3),
        ("quickstart-oracle", {}, None),
    ],
)
def test_only_runs_whose_ranks_are_on_the_cluster_reserve_it(
    recipe: str, settings: dict[str, Any], count: int | None
) -> None:
    found = run_bundles(resolve(recipe, settings), cluster_has_gpus=False)
    assert [one.count for one in found] == ([] if count is None else [count])
