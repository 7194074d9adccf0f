"""Runs of a published architecture: it is sampled, and bad models are refused before any sandbox starts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from engine.config.policies import TransformerPolicyConfig
from engine.config.run import AnyRun, EvaluateRun, TrainRun
from engine.orchestrator import execute
from tests.integration import toy_yard
from tests.integration.toy_records import of_type
from tests.integration.toy_yard import events, open_context
from tests.unit.models.chat_templates import TEMPLATES
from tests.unit.models.tiny_families import write_tiny

_FAMILY = "gpt_oss"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with the toy dataset and a tiny random model."""
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
    """Four iterations that learn from the tokens' entropy: a random model solves nothing."""
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


def unknown_architecture(folder: Path) -> None:
    edit_config(folder, model_type="nobodys")


def bigger_tokenizer(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([f"extra{number}" for number in range(100)])
    tokenizer.save_pretrained(folder)


def missing_shard(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    names = dict.fromkeys(tensors, "model-00001-of-00002.safetensors")
    names["lm_head.weight"] = "model-00002-of-00002.safetensors"
    first = {name: tensors[name] for name in tensors if name != "lm_head.weight"}
    save_file(first, folder / "model-00001-of-00002.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))


def damaged_shard(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def whole_numbers(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["lm_head.weight"].to(torch.int8)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def shorter_context(folder: Path) -> None:
    edit_config(folder, max_position_embeddings=512)


def edit_config(folder: Path, **settings: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


BROKEN: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "unknown architecture": (unknown_architecture, "nobodys", ""),
    "tokenizer with more tokens": (bigger_tokenizer, "the tokenizer has", "do not belong together"),
    "missing shard": (missing_shard, "model-00002-of-00002.safetensors", "download"),
    "damaged shard": (damaged_shard, "model.safetensors", "download"),
    "wrong type": (whole_numbers, "lm_head.weight", "unquantised"),
    "longer context": (shorter_context, "agent.max_context is 1024", "lower agent.max_context"),
}
"""How a folder is spoiled, what the error names, and what it says to do."""


@pytest.mark.parametrize("name", BROKEN)
def test_a_bad_model_is_named_before_any_sandbox_starts(home: Path, tmp_path: Path, name: str) -> None:
    spoil, names, remedy = BROKEN[name]
    folder = tmp_path / "model"
    shutil.copytree(home / "policies" / _FAMILY, folder)
    spoil(folder)
    config = training(home, policy={"checkpoint": str(folder)})
    status, run_dir = perform(home, name.replace(" ", "-"), config)
    assert status == 1
    last = events(run_dir)[-1]
    assert last["state"] == "failed"
    assert names in last["reason"]
    assert remedy in last["reason"]
    assert str(folder) in last["reason"]
    assert not of_type(run_dir, "sandboxes_changed")


def test_an_evaluation_samples_it_too(home: Path) -> None:
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
