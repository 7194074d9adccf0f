"""Runs that sample with vLLM servers of their own; the servers are fakes with our sampler in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fakes.vllm_server import fake_interpreter
from tests.unit.environments.lake_builders import of_type, perform, small_run


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def engines(home: Path) -> dict[str, Any]:
    """Settings of two fake servers."""
    return {
        "policy.engine": "vllm",
        "policy.vllm.python": str(fake_interpreter(home / "fake")),
        "policy.vllm.replicas": 2,
        "rollout.max_concurrent": 8,
        "trainer.learning_rate": 3e-3,
        "algorithm.entropy_coefficient": 0.01,  # a gradient also where all rewards are equal
    }


def test_a_run_trains_on_engines_that_prove_each_version(home: Path, engines: dict[str, Any]) -> None:
    events = perform(home, "trained", small_run(**engines))
    finished = of_type(events, "iteration_finished")
    assert [one["policy_version"] for one in finished] == [1, 2]
    for one in finished:
        metrics = one["metrics"]
        assert metrics["mismatch/max"] <= 1e-4
        assert metrics["publish/replicas"] == 2.0
        assert metrics["publish/parity"] <= 1e-4
        assert metrics["publish/seconds"] > 0
        assert metrics["engine/tokens_per_s"] > 0
        assert 0 < metrics["engine/prefix_hit_rate"] <= 1
        assert metrics["infra/rate"] == 0.0
    trajectories = of_type(events, "trajectory_finished")
    by_iteration = {
        (one["ref"]["iteration"], one["ref"]["phase"]): one["policy_version_min"] for one in trajectories
    }
    assert by_iteration[1, "train"] == 1
    assert by_iteration[2, "eval:heldout"] == 2
    reported = of_type(events, "engines_reported")
    assert {engine["name"] for one in reported for engine in one["replicas"]} == {"engine-0", "engine-1"}
    assert {"starting", "publishing", "ready"} <= {e["state"] for one in reported for e in one["replicas"]}
    assert not [one for one in of_type(events, "alert") if one["code"].startswith(("engine", "publication"))]


def test_a_resumed_run_publishes_the_checkpoints_weights(home: Path, engines: dict[str, Any]) -> None:
    perform(home, "resumed", small_run(**engines, **{"trainer.iterations": 1}))
    events = perform(home, "resumed", small_run(**engines), epoch=2)
    (finished,) = [one for one in of_type(events, "iteration_finished") if one["epoch"] == 2]
    assert (finished["iteration"], finished["policy_version"]) == (1, 2)
    assert finished["metrics"]["mismatch/max"] <= 1e-4
    versions = {
        one["policy_version_max"]
        for one in of_type(events, "trajectory_finished")
        if one["epoch"] == 2 and one["ref"]["phase"] == "train"
    }
    assert versions == {1}
