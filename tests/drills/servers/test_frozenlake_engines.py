"""Runs with their own vLLM servers, here fakes around the built-in sampler."""

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
    """Settings of a run with two fake servers."""
    return {
        "policy.engine": "vllm",
        "policy.vllm.python": str(fake_interpreter(home / "fake")),
        "policy.vllm.replicas": 2,
        "rollout.max_concurrent": 8,
        "trainer.learning_rate": 3e-3,
        "algorithm.entropy_coefficient": 0.01,  # a gradient also where all rewards are equal
    }


def test_run_trains_on_engines_that_verify_each_version(home: Path, engines: dict[str, Any]) -> None:
    events = perform(home, "trained", small_run(**engines))
    finished = of_type(events, "iteration_finished")
    assert [event["policy_version"] for event in finished] == [1, 2]
    for event in finished:
        metrics = event["metrics"]
        assert metrics["mismatch/max"] <= 1e-4
        assert metrics["publish/replicas"] == 2.0
        assert metrics["publish/parity"] <= 1e-4
        assert metrics["publish/seconds"] > 0
        assert metrics["engine/tokens_per_s"] > 0
        assert 0 < metrics["engine/prefix_hit_rate"] <= 1
        assert metrics["infra/rate"] == 0.0
    trajectories = of_type(events, "trajectory_finished")
    by_iteration = {
        (row["ref"]["iteration"], row["ref"]["phase"]): row["policy_version_min"] for row in trajectories
    }
    assert by_iteration[1, "train"] == 1
    assert by_iteration[2, "eval:heldout"] == 2
    reported = of_type(events, "engines_reported")
    assert {engine["name"] for row in reported for engine in row["replicas"]} == {"engine-0", "engine-1"}
    assert {"starting", "publishing", "ready"} <= {e["state"] for row in reported for e in row["replicas"]}
    assert not [row for row in of_type(events, "alert") if row["code"].startswith(("engine", "publication"))]


def test_a_resumed_run_publishes_the_checkpoints_weights(home: Path, engines: dict[str, Any]) -> None:
    perform(home, "resumed", small_run(**engines, **{"trainer.iterations": 1}))
    events = perform(home, "resumed", small_run(**engines), epoch=2)
    (finished,) = [event for event in of_type(events, "iteration_finished") if event["epoch"] == 2]
    assert (finished["iteration"], finished["policy_version"]) == (1, 2)
    assert finished["metrics"]["mismatch/max"] <= 1e-4
    versions = {
        event["policy_version_max"]
        for event in of_type(events, "trajectory_finished")
        if event["epoch"] == 2 and event["ref"]["phase"] == "train"
    }
    assert versions == {1}
