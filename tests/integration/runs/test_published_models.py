"""Whole runs of a published architecture: trained, killed, resumed and exported by real processes; bad models
refused before any sandbox starts."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.config.policies import TransformerPolicyConfig
from engine.config.run import EvaluateRun, RolloutRun, TrainRun
from tests.integration import toy_yard
from tests.integration.runs.test_orchestrator import assert_same_state, of_type, weights
from tests.integration.toy_yard import engine_process, events, make_run_dir, wait_for
from tests.unit.models.chat_templates import TEMPLATES
from tests.unit.models.tiny_families import write_tiny

_FAMILY = "gpt_oss"
_PATIENCE_S = 400.0


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with the toy dataset and a tiny random model."""
    home = toy_yard.taught_home(tmp_path_factory.mktemp("home"))
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
    data["algorithm"] |= {"entropy_coefficient": 0.01}
    data["evaluation"] |= {"samples": 1, "train_samples": 0}
    for name, value in settings.items():
        data[name] |= value
    return TrainRun.model_validate(data)


def run_to_end(run_dir: Path) -> int:
    with engine_process(run_dir) as process:
        return process.wait(timeout=_PATIENCE_S)


def test_killed_and_resumed_it_learns_the_same_and_its_export_opens(home: Path, tmp_path: Path) -> None:
    """One sequence at a time is sampled, so that the groups of both runs are the same to the last bit.

    The checkpoint that the second attempt starts from is removed while it trains.
    """
    whole = make_run_dir(home, "whole", training(home))
    assert run_to_end(whole) == 0, events(whole)[-1]
    assert of_type(whole, "iteration_finished")[-1]["policy_version"] == 4

    killed = make_run_dir(home, "killed", training(home))
    with engine_process(killed) as process:
        assert wait_for(process, lambda: len(of_type(killed, "checkpoint_saved")) > 1)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert of_type(killed, "run_finished") == []
    last_words = (killed / "engine.log").read_text().splitlines()[-1]
    assert last_words.startswith("{"), "a page shows them below the reason"
    make_run_dir(home, "killed", training(home), epoch=2)
    assert run_to_end(killed) == 0, events(killed)[-1]
    assert of_type(killed, "run_started")[-1]["resumed_from"] > 0
    assert_same_state(whole, killed)
    assert weights(whole) == weights(killed)

    out = tmp_path / "export"
    command = [sys.executable, "-m", "engine.trainer", "export", str(killed), str(out)]
    subprocess.run(command, check=True, timeout=_PATIENCE_S)
    model = AutoModelForCausalLM.from_pretrained(out)
    assert model.config.model_type == _FAMILY
    before = AutoModelForCausalLM.from_pretrained(home / "policies" / _FAMILY)
    assert not torch.equal(model.lm_head.weight, before.lm_head.weight)
    assert AutoTokenizer.from_pretrained(out).chat_template == TEMPLATES[_FAMILY]


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
    run_dir = make_run_dir(home, name.replace(" ", "-"), training(home, policy={"checkpoint": str(folder)}))
    assert run_to_end(run_dir) == 1
    last = events(run_dir)[-1]
    assert last["state"] == "failed"
    assert names in last["reason"]
    assert remedy in last["reason"]
    assert str(folder) in last["reason"]
    assert not of_type(run_dir, "sandboxes_changed")


@pytest.mark.parametrize("kind", [RolloutRun, EvaluateRun])
def test_other_runs_sample_it_too(home: Path, kind: type[RolloutRun] | type[EvaluateRun]) -> None:
    settings = training(home)
    config = kind(
        name="sampled",
        dataset=settings.dataset,
        sandbox=settings.sandbox,
        agent=settings.agent,
        grading=settings.grading.model_copy(update={"reuse_verdicts": True}),
        policy=TransformerPolicyConfig(checkpoint=settings.policy.checkpoint),
        rollout=settings.rollout,
    )
    run_dir = make_run_dir(home, f"sampled-{kind.__name__}", config)
    assert run_to_end(run_dir) == 0, events(run_dir)[-1]
    finished = of_type(run_dir, "trajectory_finished")
    assert len(finished) == 4
    assert {event["termination"] for event in finished} <= {"max_response", "max_steps"}
