"""Warm start, training, evaluation and bench on FrozenLake, with small settings."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.frozenlake_report import sign_flip_p
from engine.config.environment import FrozenLakeConfig
from engine.config.recipes import resolve
from engine.environments.frozenlake_maps import frozenlake_rows
from engine.events.token_block import decode
from engine.models.chat.chatml import ChatML
from engine.models.loader import fresh_tokenizer, open_model
from engine.orchestrator.policies.warm_start import warm_start
from engine.rollout.expert_episodes import ExpertEpisodes
from engine.tools.schemas import LAKE_TOOLS
from tests.builders.cut_runs import cut_off
from tests.unit.environments.lake_builders import AGENT, LAKE, of_type, perform, small_run

LAKE_CONFIG = FrozenLakeConfig(**LAKE)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tmp_path_factory.mktemp("home")


def weights(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def test_expert_episodes_have_the_form_of_rollouts() -> None:
    tokenizer = fresh_tokenizer("frozenlake")
    episodes = ExpertEpisodes(LAKE_CONFIG, AGENT, ChatML(tokenizer)).take(40)
    heldout = [str(r.task.metadata["grid"]) for r in frozenlake_rows(LAKE_CONFIG) if r.split == "heldout"]
    moved = 0
    for episode in episodes:
        text = tokenizer.decode(episode.ids.tolist())
        assert text.startswith("<|im_start|>user\n")
        assert len(episode) <= AGENT.max_context
        assert not any(text.startswith(f"<|im_start|>user\n{grid}\n") for grid in heldout)
        sampled = tokenizer.decode(episode.ids[episode.mask].tolist())
        turns = sampled.split("<|im_end|>")[:-1]
        assert all(turn.split("move ")[-1] in LAKE_TOOLS["move"].parameters[0].choices for turn in turns)
        moved += len(turns)
    assert moved > 40
    again = ExpertEpisodes(LAKE_CONFIG, AGENT, ChatML(tokenizer)).take(40)
    assert again == episodes


def test_the_warm_start_is_cached_and_reproducible(home: Path, tmp_path: Path) -> None:
    reported: list[tuple[int, int]] = []
    short = LAKE_CONFIG.model_copy(update={"warm_start_steps": 3})
    folder = warm_start(
        short, AGENT, home=home, progress=lambda _m, done, total: reported.append((done, total))
    )
    assert folder is not None
    assert reported[-1] == (3, 3)
    modified_ns = (folder / "model.safetensors").stat().st_mtime_ns
    assert warm_start(short, AGENT, home=home) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == modified_ns
    elsewhere = warm_start(short, AGENT, home=tmp_path)
    assert elsewhere is not None
    assert elsewhere.name == folder.name
    assert weights(elsewhere) == weights(folder)
    model, tokenizer = open_model(str(folder), home=home).builtin()
    assert tokenizer.vocab_size <= model.config.vocab_size
    other = warm_start(short.model_copy(update={"warm_start_seed": 1}), AGENT, home=tmp_path)
    assert warm_start(LAKE_CONFIG, AGENT, home=tmp_path, should_stop=lambda: True) is None, "it was stopped"
    assert other is not None
    made_here = {path.name for path in (tmp_path / "warm_starts").glob("frozenlake-*[0-9a-f]")}
    assert made_here == {other.name, folder.name}
    assert len(made_here) == 2


@pytest.fixture(scope="module")
def plain(home: Path) -> list[dict[str, Any]]:
    """Return the events of a training run of two iterations, evaluated before and after."""
    return perform(home, "plain", small_run())


def test_training_changes_the_weights_and_emits_its_events(home: Path, plain: list[dict[str, Any]]) -> None:
    finished = [event for event in plain if event["type"] == "iteration_finished"]
    assert [event["iteration"] for event in finished] == [0, 1]
    assert sum(event["metrics"]["update/steps"] for event in finished) > 0, "no group had a signal"
    saved = [event["checksum"] for event in plain if event["type"] == "checkpoint_saved"]
    assert len(saved) == len(set(saved)) == 3
    evaluations = [event for event in plain if event["type"] == "evaluation_finished"]
    assert [(event["iteration"], event["name"]) for event in evaluations] == [(0, "heldout"), (2, "heldout")]
    assert [entry["k"] for entry in evaluations[0]["pass_at_k"]] == [1, 2]
    assert evaluations[0]["pass_at_k"][0]["rate"] == evaluations[0]["solve_rate"]
    trajectories = [event for event in plain if event["type"] == "trajectory_finished"]
    assert {event["verdict"] for event in trajectories} <= {"passed", "failed"}
    assert all(event["detail"].startswith("You ") for event in trajectories)
    steps = [event for event in plain if event["type"] == "step_finished" and event["tool"]]
    assert {event["tool"] for event in steps} == {"move"}


def test_evaluations_do_not_change_the_training_stream(home: Path, plain: list[dict[str, Any]]) -> None:
    often = perform(home, "often", small_run(**{"evaluation.every": 1, "evaluation.train_samples": 4}))
    assert sum(event["type"] == "evaluation_finished" for event in often) == 6

    def stream(events: list[dict[str, Any]]) -> list[Any]:
        tasks = [event["task_ids"] for event in events if event["type"] == "iteration_started"]
        trajectories = [
            (event["ref"], decode(base64.b64decode(event["tokens"])).ids.tolist(), event["reward"])
            for event in events
            if event["type"] == "trajectory_finished" and event["ref"]["phase"] == "train"
        ]
        return [*tasks, *trajectories]

    assert stream(often) == stream(plain)
    evaluated = {e["ref"]["task_id"] for e in plain if "ref" in e and e["ref"]["phase"] == "eval:heldout"}
    trained = {e["ref"]["task_id"] for e in plain if "ref" in e and e["ref"]["phase"] == "train"}
    assert evaluated.isdisjoint(trained)


def test_a_resumed_evaluation_equals_an_uninterrupted_one(home: Path, plain: list[dict[str, Any]]) -> None:
    lake = {f"environment.{name}": value for name, value in LAKE.items()}
    policy = {"policy.checkpoint": "run:plain", "rollout.group_size": 4, "rollout.max_concurrent": 1}
    config = resolve("frozenlake-evaluate", {**lake, **policy})
    whole = perform(home, "evaluated", config)
    cut_off(home / "runs" / "evaluated", home / "runs" / "killed", rollouts=7)
    killed = perform(home, "killed", config, epoch=2)
    assert of_type(killed, "run_started")[1]["rollouts_kept"] == 7
    refs = [event["ref"] for event in of_type(killed, "trajectory_finished")]
    assert sorted(map(str, refs)) == sorted(str(e["ref"]) for e in of_type(whole, "trajectory_finished"))
    (expected,), (resumed,) = (of_type(events, "evaluation_finished") for events in (whole, killed))
    assert [entry["k"] for entry in resumed["pass_at_k"]] == [1, 2, 4]
    for part in ("pass_at_k", "solve_rate", "num_samples"):
        assert resumed[part] == expected[part]
    assert counted(resumed) == counted(expected)
    rewards = [
        {str(e["ref"]): e["reward"] for e in of_type(events, "trajectory_finished")}
        for events in (whole, killed)
    ]
    assert rewards[0] == rewards[1]


def counted(evaluation: dict[str, Any]) -> dict[str, float]:
    """Return the metrics except times and machine metrics."""
    metrics = evaluation["metrics"].items()
    measured = ("time/", "machine/")
    return {name: value for name, value in metrics if not (name.startswith(measured) or name.endswith("_ms"))}


# The bench


def test_the_sign_flip_test_is_exact() -> None:
    assert sign_flip_p([0.1] * 8) == 2 / 2**8
    assert sign_flip_p([0.3, -0.1, 0.2]) == 2 / 8 * 2
    assert sign_flip_p([0.0, 0.0]) == 1.0
