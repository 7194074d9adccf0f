"""Runs of a published architecture: sampling, and refusal of damaged models."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from engine.config.policies import TransformerPolicyConfig
from engine.config.run import AnyRun, EvaluateRun, TrainRun
from engine.orchestrator import execute
from tests.integration import toy_yard
from tests.integration.toy_records import of_type
from tests.integration.toy_yard import events, open_context
from tests.unit.models.chat.chat_templates import TEMPLATES
from tests.unit.models.tiny_families import write_tiny

_FAMILY = "gpt_oss"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data folder with the toy dataset and a tiny random model."""
    home = toy_yard.dataset_home(tmp_path_factory.mktemp("home"))
    write_tiny(
        home / "policies" / _FAMILY,
        _FAMILY,
        chat_template=TEMPLATES[_FAMILY],
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
    )
    return home


def training(home: Path, **settings: Any) -> TrainRun:
    """Return a run of four iterations; entropy trains the random model, which solves nothing."""
    data = toy_yard.training(home, iterations=4, minibatches=1, keep_checkpoints=1).model_dump(mode="json")
    data["policy"] |= {"checkpoint": str(home / "policies" / _FAMILY), "max_batch": 1}
    data["agent"] |= {"max_context": 1024, "max_response": 24, "max_steps": 2}
    data["rollout"] |= {"group_size": 2, "max_concurrent": 1}
    data["evaluation"] |= {"samples": 1, "train_samples": 0}
    for name, value in settings.items():
        data[name] |= value
    return TrainRun.model_validate(data)


def perform(home: Path, name: str, config: AnyRun) -> tuple[int, Path]:
    """Perform a run; return its exit status and its folder."""
    with open_context(home, name, config) as run:
        return execute(config, run), run.run_dir


def test_damaged_model_is_named_before_any_sandbox_starts(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(home / "policies" / _FAMILY, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    status, run_dir = perform(home, "damaged", training(home, policy={"checkpoint": str(folder)}))
    assert status == 1
    last = events(run_dir)[-1]
    assert last["state"] == "failed"
    for words in (str(folder), "model.safetensors", "download"):
        assert words in last["reason"]
    assert not of_type(run_dir, "sandboxes_changed")


def test_evaluation_samples_a_published_architecture(home: Path) -> None:
    settings = training(home)
    config = EvaluateRun(
        name="sampled",
        dataset=settings.dataset,
        sandbox=settings.sandbox,
        agent=settings.agent,
        grading=settings.grading,
        policy=TransformerPolicyConfig(checkpoint=settings.policy.checkpoint),
        rollout=settings.rollout,
    )
    status, run_dir = perform(home, "sampled", config)
    assert status == 0, events(run_dir)[-1]
    finished = of_type(run_dir, "trajectory_finished")
    assert len(finished) == 4
    assert {event["termination"] for event in finished} <= {"max_response", "max_steps"}
