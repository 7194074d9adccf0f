"""Runs of kind ``improve`` on FrozenLake: rounds, kept rollouts, resumption and selection."""

from __future__ import annotations

import errno
import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from engine.config.environment import FrozenLakeConfig
from engine.config.learning.fine_tuning import SelectionRule
from engine.config.recipes.frozenlake import AGENT
from engine.config.run import ImproveRun, parse_run_config
from engine.errors import ConfigError
from engine.events.delivery.control import Control
from engine.events.selection import select
from engine.events.stored_trajectories import TRAJECTORIES_FILE, StoredTrajectory, read_trajectories
from engine.events.token_block import decode
from engine.models import frozen
from engine.models.loader import open_model
from engine.orchestrator.context import RunStopped
from engine.orchestrator.improvement.kept import choose_kept, read_kept
from engine.trainer.__main__ import main
from engine.trainer.checkpoints.checkpoint import load_latest
from tests.builders.cut_runs import cut_off
from tests.unit.environments.lake_builders import LAKE, attempt, of_type, perform


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tmp_path_factory.mktemp("home")


def configured(**changes: Any) -> ImproveRun:
    improvement = {"rounds": 2, "per_task": 2, **changes.pop("improvement", {})}
    lake = FrozenLakeConfig(**{**LAKE, **changes.pop("environment", {})})
    data = {
        "kind": "improve",
        "name": "t",
        "environment": lake.model_dump(),
        "agent": AGENT.model_dump(),
        "policy": {"checkpoint": "warm", "temperature": 0.8},
        "rollout": {"group_size": 4, "max_concurrent": 1},
        "improvement": improvement,
        "trainer": {"max_tokens": 512, "learning_rate": 1e-3, "batch_size": 4, "threads": 1, "device": "cpu"},
        "evaluation": {"samples": 6},
        **changes,
    }
    config = parse_run_config(data)
    assert isinstance(config, ImproveRun)
    return config


def kept(home: Path, name: str, number: int) -> list[StoredTrajectory]:
    """Return the trajectories on which a round (from 1) was trained."""
    return list(read_trajectories(home / "runs" / name / "rounds" / f"{number:02d}" / TRAJECTORIES_FILE))


def parameters(home: Path, ref: str) -> dict[str, torch.Tensor]:
    return dict(open_model(ref, home=home).model.named_parameters())


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def whole(home: Path) -> list[dict[str, Any]]:
    return perform(home, "whole", configured())


def test_every_round_samples_keeps_and_learns_and_is_evaluated(
    home: Path, whole: list[dict[str, Any]]
) -> None:
    assert whole[0]["total_iterations"] == 2
    assert whole[-1]["state"] == "succeeded"
    order = [
        (event["type"], event["iteration"])
        for event in whole
        if event["type"]
        in ("evaluation_finished", "iteration_started", "checkpoint_saved", "iteration_finished")
    ]
    assert order == [
        ("evaluation_finished", 0),
        ("iteration_started", 0),
        ("checkpoint_saved", 1),
        ("iteration_finished", 0),
        ("evaluation_finished", 1),
        ("iteration_started", 1),
        ("checkpoint_saved", 2),
        ("iteration_finished", 1),
        ("evaluation_finished", 2),
    ]
    finished = of_type(whole, "trajectory_finished")
    counts = Counter((event["ref"]["phase"], event["ref"]["iteration"]) for event in finished)
    assert counts == {
        **{("eval:heldout", number): 6 for number in range(3)},
        **{("train", number): 24 for number in range(2)},
    }
    assert all(event["policy_version_max"] == event["ref"]["iteration"] for event in finished)
    solved = {
        (event["ref"]["iteration"], event["ref"]["task_id"], event["ref"]["index"])
        for event in finished
        if event["verdict"] == "passed" and event["ref"]["phase"] == "train"
    }
    for number, metrics in enumerate(event["metrics"] for event in of_type(whole, "iteration_finished")):
        stored = kept(home, "whole", number + 1)
        assert metrics["kept/trajectories"] == len(stored) > 0
        assert metrics["kept/tasks"] == len({row.task_id for row in stored})
        assert max(Counter(row.task_id for row in stored).values()) == 2
        assert {row.task_id for row in stored} == {task for round_, task, _ in solved if round_ <= number}
        assert all(row.verdict == "passed" and row.steps and row.tokens for row in stored)
        for row in stored:
            assert row.tokens is not None
            assert len(row.steps) == decode(row.tokens.data).steps.max() + 1
        assert metrics["loss/value"] > 0
        assert metrics["tokens/trained"] > 0
    assert same(parameters(home, "run:whole"), parameters(home, str(home / "runs/whole/checkpoints/00002")))
    assert not same(
        parameters(home, "run:whole"), parameters(home, str(home / "runs/whole/checkpoints/00001"))
    )
    assert not list((home / "runs/whole/rounds").glob("*/checkpoints"))
    summary = whole[-1]["summary"]
    for kind in ("iteration_finished", "evaluation_finished"):
        assert all("machine/load" in event["metrics"] for event in of_type(whole, kind))
    rates = [event["solve_rate"] for event in of_type(whole, "evaluation_finished")]
    assert (summary["heldout_first"], summary["heldout_last"]) == (rates[0], rates[-1])
    assert summary["iterations"] == 2
    rounds = [event["metrics"]["solve/rate"] for event in of_type(whole, "iteration_finished")]
    assert (summary["solve_rate_first"], summary["solve_rate_last"]) == (rounds[0], rounds[-1])


@pytest.mark.parametrize("lived", [{"rollouts": 17}, {"iterations": 1}], ids=str)
def test_a_resumed_run_ends_like_an_uninterrupted_one(
    home: Path, whole: list[dict[str, Any]], lived: dict[str, int]
) -> None:
    name = "-".join(lived)
    left = cut_off(home / "runs" / "whole", home / "runs" / name, **lived)
    log = perform(home, name, configured(), epoch=2)
    assert log[-1]["state"] == "succeeded"
    resumed = of_type(log, "run_started")[1]
    assert resumed["rollouts_kept"] == len(of_type(left, "trajectory_finished"))
    assert resumed["resumed_from"] == (len(of_type(left, "iteration_finished")) or None)
    for number in (1, 2):
        assert [row.tokens for row in kept(home, name, number)] == [
            row.tokens for row in kept(home, "whole", number)
        ]
    assert same(parameters(home, f"run:{name}"), parameters(home, "run:whole"))
    for key in ("heldout_first", "heldout_last", "solve_rate_first", "solve_rate_last"):
        assert log[-1]["summary"][key] == whole[-1]["summary"][key]
    refs = Counter(json.dumps(event["ref"]) for event in of_type(log, "trajectory_finished"))
    assert set(refs.values()) == {1}


COLLECTED = 6 + 24
"""Rollouts of the first evaluation and of the first round."""


def test_fine_tuning_resumes_from_its_checkpoint_with_the_same_kept_rollouts(
    home: Path, whole: list[dict[str, Any]]
) -> None:
    """A stop in the middle of a round's fine-tuning repeats no rollout, not even a lost one, and no epoch."""
    name = "tuning"
    spool, folder = home / "runs" / name / "events.jsonl", home / "runs" / name / "rounds" / "01"
    cut_off(home / "runs" / "whole", home / "runs" / name, rollouts=COLLECTED)

    class StopsAfterTheFirstEpoch(Control):
        def desired(self) -> Any:
            if list(folder.glob("checkpoints/[0-9]*")):
                self.stop("enough")
            return super().desired()

    config = configured(trainer={**configured().trainer.model_dump(), "checkpoint_every": 1})
    stopped = perform(home, name, config, epoch=2, control=StopsAfterTheFirstEpoch())
    assert stopped[-1]["state"] == "stopped"
    assert not of_type(stopped, "iteration_finished")
    saved = load_latest(folder)
    assert saved is not None
    failed = [
        e for e in of_type(stopped, "trajectory_finished") if e["ref"]["phase"] == "train" and not e["reward"]
    ]
    lost = {**failed[0], "termination": "env_error", "verdict": None, "reward": None}
    lines = spool.read_text().splitlines()
    lines[stopped.index(failed[0])] = json.dumps(lost, separators=(",", ":"))
    spool.write_text("\n".join(lines) + "\n")
    log = perform(home, name, config, epoch=3)
    resumed = [event for event in log if event["epoch"] == 3]
    tuned = [e["done"] for e in resumed if e["type"] == "run_progress" and "tuning" in e["message"]]
    assert tuned[0] == saved.iteration + 1
    assert not [e for e in of_type(resumed, "trajectory_finished") if e["ref"]["iteration"] == 0]
    first, expected = (of_type(events, "iteration_finished")[0]["metrics"] for events in (log, whole))
    for key in expected:
        assert not key.startswith(("kept/", "solve/")) or first[key] == expected[key]
    assert first["kept/trajectories"] == len(kept(home, name, 1))
    assert same(parameters(home, f"run:{name}"), parameters(home, "run:whole"))


def test_rounds_can_use_the_last_rollouts_and_start_from_the_last_policy(
    home: Path, whole: list[dict[str, Any]]
) -> None:
    cut_off(home / "runs" / "whole", home / "runs" / "last", iterations=1)
    log = perform(
        home, "last", configured(improvement={"learn_from": "last", "start_from": "previous"}), epoch=2
    )
    solved = {
        event["ref"]["task_id"]
        for event in of_type(log, "trajectory_finished")
        if event["verdict"] == "passed"
        and event["ref"]["phase"] == "train"
        and event["ref"]["iteration"] == 1
    }
    assert {row.task_id for row in kept(home, "last", 2)} == solved
    assert not same(parameters(home, "run:last"), parameters(home, "run:whole"))
    provenance = json.loads((home / "runs/last/checkpoints/00002/provenance.json").read_text())
    assert provenance["from"] == str(home / "runs/last/checkpoints/00001")


def test_adapters_are_trained_in_every_round_and_copied_if_linking_fails(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "cross-device link", str(path))

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    monkeypatch.setattr(frozen, "_COPIED_BYTES", 0)
    trainer = {**configured().trainer.model_dump(), "lora_rank": 2}
    config = configured(trainer=trainer, improvement={"start_from": "previous"}, evaluation={"samples": 1})
    log = perform(home, "lora", config)
    assert log[-1]["state"] == "succeeded"
    base = parameters(home, str(home / "runs/lora/start"))
    first = parameters(home, str(home / "runs/lora/checkpoints/00001"))
    assert not same(base, first)
    assert not same(first, parameters(home, "run:lora"))
    out, source = home / "lora-merged", str(home / "runs/lora")
    assert main(["export", source, str(out)]) == 0
    merged, trained = parameters(home, str(out)), parameters(home, "run:lora")
    assert all(torch.allclose(merged[name], trained[name]) for name in trained)
    assert main(["export", source, str(home / "lora-adapters"), "--adapters"]) == 0
    settings = json.loads((home / "lora-adapters/adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"]) == (2, 16)
    assert settings["base_model_name_or_path"] == str(home / "runs/lora/checkpoints/00002/base")


def test_the_last_policy_is_exported(
    home: Path, whole: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    out, run_dir = home / "exported", home / "runs/whole"
    assert main(["export", str(run_dir), str(out)]) == 0
    exported, expected = parameters(home, str(out)), parameters(home, "run:whole")
    assert all(torch.allclose(exported[name], expected[name]) for name in expected)
    assert main(["export", str(run_dir), str(home / "none"), "--adapters"]) == 2
    assert "has no adapters: trainer.lora_rank was 0" in capsys.readouterr().err


def test_reading_kept_rollouts_stops_with_the_run(home: Path, whole: list[dict[str, Any]]) -> None:
    def stop() -> None:
        raise RunStopped("enough")

    spool, rule = home / "runs/whole/events.jsonl", configured().improvement
    with pytest.raises(RunStopped):
        choose_kept(spool, rule, number=0, seed=0, check=stop)
    chosen = choose_kept(spool, rule, number=0, seed=0, check=lambda: None).chosen
    with pytest.raises(RunStopped):
        next(read_kept(spool, chosen, {}, run_id="1", model="warm", check=stop))


def test_blank_patches_are_not_duplicates(tmp_path: Path, whole: list[dict[str, Any]]) -> None:
    """Selection of stored trajectories agrees: without changes they have no hash."""
    spool = tmp_path / "events.jsonl"
    passed = [e for e in of_type(whole, "trajectory_finished") if e["verdict"] == "passed"]
    first = next(e for e in passed if e["ref"]["phase"] == "train" and e["termination"] == "submitted")
    lines = [{**first, "ref": {**first["ref"], "index": index}, "patch": "\n"} for index in range(2)]
    spool.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    rule = configured().improvement
    selection = choose_kept(spool, rule, number=first["ref"]["iteration"], seed=0, check=lambda: None)
    assert (len(selection.chosen), selection.duplicates) == (2, 0)


def test_a_round_without_kept_rollouts_fails_the_run_with_the_reason(
    home: Path, whole: list[dict[str, Any]]
) -> None:
    config = configured(improvement={"terminations": ["max_context"]})
    cut_off(home / "runs" / "whole", home / "runs" / "nothing", rollouts=COLLECTED)
    code, log = attempt(home, "nothing", config, epoch=2)
    assert code == 1
    assert log[-1]["state"] == "failed"
    assert "no rollout of round 1 can be kept: none passed and ended by max_context" in log[-1]["reason"]


def test_several_greedy_rollouts_of_a_task_are_refused() -> None:
    data = configured().model_dump(mode="json")
    data["policy"]["temperature"] = 0
    with pytest.raises(ConfigError, match=r"policy.temperature: 0 makes the 4 rollouts of a task identical"):
        parse_run_config(data)
    data["rollout"]["group_size"] = 1
    assert parse_run_config(data).kind == "improve"


class _Row(NamedTuple):
    id: int
    task_key: str
    generated_tokens: int = 10
    patch_hash: str = ""
    num_steps: int = 1


def test_a_limit_is_spread_over_tasks() -> None:
    many = [_Row(number, "a", 10 + number) for number in range(10)]
    few = [_Row(number, task, 1000) for number, task in ((10, "b"), (11, "c"))]
    result = select([*many, *few], SelectionRule(prefer="shortest", limit=4, distinct_patches=False), seed=0)
    assert result.chosen[0].id == 0
    assert {row.id for row in result.chosen[1:3]} == {10, 11}
    assert result.chosen[3].id == 1
    assert Counter(row.task_key for row in result.chosen) == {"a": 2, "b": 1, "c": 1}
    assert (result.duplicates, result.over_cap, result.over_limit) == (0, 0, 8)


def test_one_of_equal_patches_is_selected_and_the_rest_is_counted() -> None:
    rows = [_Row(number, "a", 10 + number, "same") for number in range(3)] + [_Row(3, "a", 1, "other")]
    result = select(rows, SelectionRule(prefer="shortest", per_task=1), seed=0)
    assert [row.id for row in result.chosen] == [3]
    assert (result.duplicates, result.over_cap, result.over_limit) == (2, 1, 0)
    assert {row.id for row in select(rows, SelectionRule(prefer="shortest"), seed=0).chosen} == {0, 3}
