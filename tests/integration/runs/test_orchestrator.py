"""Whole runs of the engine: real sandboxes, tests, processes and signals, and a tiny policy that learns."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from engine.config.policies import NoopPolicyConfig, OraclePolicyConfig, ReplayPolicyConfig
from engine.datasets.store import load_dataset
from engine.events.token_block import decode
from engine.orchestrator import execute
from tests.fakes.ingest_server import Answer, IngestServer, ingest_server
from tests.integration import toy_yard
from tests.integration.toy_yard import engine_process, events, make_run_dir, open_context, wait_for
from tests.unit.trainer.checkpoint_builders import stored_state

_PATIENCE_S = 400.0


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with the toy dataset and its half-taught policy."""
    return toy_yard.taught_home(tmp_path_factory.mktemp("home"))


def of_type(run_dir: Path, name: str) -> list[dict[str, Any]]:
    return [event for event in events(run_dir) if event["type"] == name]


def weights(run_dir: Path) -> str:
    """Hash of the trained weights and the optimizer."""
    last = sorted((run_dir / "checkpoints").glob("[0-9]*"))[-1]
    hashed = hashlib.sha256()
    for name, tensor in sorted(stored_state(last).items()):
        hashed.update(name.encode() + tensor.numpy().tobytes())
    return hashed.hexdigest()


def assert_same_state(run_dir: Path, other: Path, *, but: str = "") -> None:
    """Equal optimizers, random states and cursors at the end; equal metrics of every iteration, but one."""
    folders = [sorted((folder / "checkpoints").glob("[0-9]*"))[-1] for folder in (run_dir, other)]
    states = [torch.load(folder / "training.pt", weights_only=True) for folder in folders]
    torch.testing.assert_close(states[0], states[1], rtol=0, atol=0)
    cursors = [json.loads((folder / "cursor.json").read_text()) for folder in folders]
    for cursor in cursors:
        del cursor["progress"]["seconds"]
    assert cursors[0] == cursors[1]
    ours, theirs = iteration_metrics(run_dir), iteration_metrics(other)
    assert ours.keys() == theirs.keys()
    for iteration, metrics in ours.items():
        differing = set(metrics.items()) ^ set(theirs[iteration].items())
        assert {(name, value) for name, value in differing if name != but} == set()


def iteration_metrics(run_dir: Path) -> dict[int, dict[str, float]]:
    """What each iteration last reported, but for what clocks and this attempt's cache of verdicts say."""
    timed = (
        "time/",
        "loop/",
        "sandbox/",
        "grading/",
        "update/seconds",
        "update/tokens_per_s",
        "update/flops_per_s",
        "update/mfu",
    )
    return {
        event["iteration"]: {k: v for k, v in event["metrics"].items() if not k.startswith(timed)}
        for event in of_type(run_dir, "iteration_finished")
    }


def sandboxes(home: Path) -> list[Path]:
    """Ledger entries of sandboxes that were not closed."""
    return list((home / "sandboxes").glob("sb-*.json"))


def expected_keys(home: Path) -> Counter[tuple[int, str, str, int]]:
    dataset = load_dataset(home, toy_yard.DATASET)
    train = [row.task.id for row in dataset.split("train")]
    heldout = [row.task.id for row in dataset.split("heldout")]
    keys = [(n, "train", task, index) for n in range(2) for task in train for index in range(4)]
    for completed in (0, 2):
        keys += [(completed, "eval:train", task, 0) for task in train]
        keys += [(completed, "eval:heldout", task, index) for task in heldout for index in range(2)]
    return Counter(keys)


def test_curation_is_told_as_events(home: Path) -> None:
    run_dir = home / "runs" / "curate"
    assert of_type(run_dir, "run_progress")
    assert of_type(run_dir, "run_finished")[0]["summary"]["tasks_train"] == 2


@pytest.mark.parametrize(
    ("policy", "rate"), [(OraclePolicyConfig(), 1.0), (NoopPolicyConfig(), 0.0)], ids=["oracle", "noop"]
)
def test_the_oracle_solves_what_doing_nothing_does_not(home: Path, policy: Any, rate: float) -> None:
    config = toy_yard.sampling(policy)
    with open_context(home, f"run-{policy.type}", config) as run:
        assert execute(config, run) == 0
    finished = of_type(run.run_dir, "trajectory_finished")
    assert [event["reward"] for event in finished] == [rate, rate]
    assert {event["termination"] for event in finished} == {"submitted"}
    summary = of_type(run.run_dir, "run_finished")[0]["summary"]
    assert summary["solve_rate_last"] == rate
    assert of_type(run.run_dir, "iteration_finished")[0]["metrics"]["infra/rate"] == 0
    assert_told_about_sandboxes(run.run_dir, rollouts=2)


def test_a_run_fails_when_infrastructure_loses_every_rollout(home: Path, tmp_path: Path) -> None:
    """Not one graded rollout is no solve rate of 0; a data folder that was moved complete is fine."""
    moved = tmp_path / "moved"
    subprocess.run(["cp", "-a", str(home), str(moved)], check=True)
    config = toy_yard.sampling(OraclePolicyConfig())
    with open_context(moved, "complete", config) as run:
        assert execute(config, run) == 0
    shutil.rmtree(moved / "toolchain")
    with open_context(moved, "broken", config) as run:
        assert execute(config, run) == 1
    last = events(run.run_dir)[-1]
    assert last["state"] == "failed"
    assert "infrastructure lost all 2 rollouts of iteration 0" in last["reason"]
    assert "toolchain" in last["reason"]
    assert "is missing" in last["reason"]


def assert_told_about_sandboxes(run_dir: Path, *, rollouts: int) -> None:
    """Every lease ended before the run did, and the clocks saw each of them."""
    told = events(run_dir)
    assert [event["type"] for event in told[-2:]] == ["pool_status", "run_finished"]
    states: dict[str, list[str]] = {}
    for event in of_type(run_dir, "sandboxes_changed"):
        for record in event["records"]:
            states.setdefault(record["lease"], []).append(record["state"])
    assert all(found[0] == "leased" and found[-1] == "closed" for found in states.values())
    last = told[-2]
    assert (last["wanted"], last["opened"], last["failures"], last["blocked"]) == (0, len(states), {}, {})
    counted = {name: sum(clock["counts"]) for name, clock in last["clocks"].items()}
    assert counted["start"] == counted["queue"] == len(states)
    assert counted["grade"] == rollouts
    actions = sum(event["tool"] != "" for event in of_type(run_dir, "step_finished"))
    assert counted["exec"] == actions
    finished = of_type(run_dir, "trajectory_finished")
    assert all(0 < event["start_seconds"] <= event["sandbox_seconds"] for event in finished)


@pytest.fixture(scope="module")
def uninterrupted(home: Path) -> Path:
    """A training run that nobody disturbed, its rollouts sampled eight at a time."""
    run_dir = make_run_dir(home, "uninterrupted", toy_yard.training(home))
    with engine_process(run_dir) as process:
        assert process.wait(timeout=_PATIENCE_S) == 0
    return run_dir


def test_training_changes_the_policy_and_reports_everything(home: Path, uninterrupted: Path) -> None:
    found = events(uninterrupted)
    assert [event["seq"] for event in found] == list(range(1, len(found) + 1))
    assert found[0]["type"] == "run_started"
    assert found[0]["resumed_from"] is None
    assert found[-1]["type"] == "run_finished"
    assert found[-1]["state"] == "succeeded"
    iterations = of_type(uninterrupted, "iteration_finished")
    assert [event["iteration"] for event in iterations] == [0, 1]
    assert iterations[-1]["policy_version"] > 0, "no group had two different rewards: nothing was learned"
    assert iterations[0]["metrics"]["mismatch/max"] < 1e-4
    assert [event["iteration"] for event in of_type(uninterrupted, "checkpoint_saved")] == [0, 1, 2]
    assert len(of_type(uninterrupted, "group_finished")) == 4
    keys = Counter(tuple(e["ref"].values()) for e in of_type(uninterrupted, "trajectory_finished"))
    assert keys == expected_keys(home)
    train = [e for e in of_type(uninterrupted, "trajectory_finished") if e["ref"]["phase"] == "train"]
    records = [decode(base64.b64decode(event["tokens"])) for event in train]
    assert all(record.logprobs[record.mask].any() for record in records)
    assert not any(record.logprobs[~record.mask].any() for record in records)
    evaluations = [(e["iteration"], e["name"]) for e in of_type(uninterrupted, "evaluation_finished")]
    assert evaluations == [(0, "heldout"), (0, "train"), (2, "heldout"), (2, "train")]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_killed_at_any_moment_it_ends_as_if_nothing_happened(
    home: Path, uninterrupted: Path, seed: int
) -> None:
    rng = random.Random(seed)
    with ingest_server() as server:
        for epoch in range(1, 20):
            server.epoch = epoch
            run_dir = make_run_dir(
                home,
                f"killed-{seed}",
                toy_yard.training(home),
                ingest_url=server.url,
                epoch=epoch,
            )
            lines = len(events(run_dir)) + rng.randrange(1, 90)
            if _run_and_kill(run_dir, after_lines=lines if epoch <= 2 else None):
                break
        assert [event["seq"] for event in server.events] == list(range(1, len(events(run_dir)) + 1))
        assert Counter(server.terminal_keys()) == expected_keys(home)
    assert weights(run_dir) == weights(uninterrupted)
    assert_same_state(run_dir, uninterrupted)
    assert sandboxes(home) == []


def test_stopped_about_an_update_and_resumed_it_ends_as_if_nothing_happened(home: Path) -> None:
    """A stop abandons an update at a microbatch: what it had changed is nowhere on disk."""
    config = toy_yard.training(home, tokens_per_microbatch=64)
    run_dir = make_run_dir(home, "stopped-in-update", config)

    def collected() -> bool:
        finished = of_type(run_dir, "trajectory_finished")
        return len([event for event in finished if event["ref"]["phase"] == "train"]) == 8

    with engine_process(run_dir) as process:
        assert wait_for(process, collected)
        process.terminate()
        assert process.wait(timeout=_PATIENCE_S) == 0
    assert events(run_dir)[-1]["state"] == "stopped"
    make_run_dir(home, "stopped-in-update", config, epoch=2)
    with engine_process(run_dir) as process:
        assert process.wait(timeout=240) == 0
    whole = make_run_dir(home, "whole", config)
    with engine_process(whole) as process:
        assert process.wait(timeout=240) == 0
    assert weights(run_dir) == weights(whole)
    assert_same_state(run_dir, whole)


def test_two_ranks_and_a_reference_policy_train_in_a_run(home: Path) -> None:
    config = toy_yard.training(home, data_parallel=2, iterations=1)
    objective = config.algorithm.model_copy(update={"kl": "k3", "kl_coefficient": 0.01})
    run_dir = make_run_dir(home, "ranks", config.model_copy(update={"algorithm": objective}))
    with engine_process(run_dir) as process:
        assert process.wait(timeout=_PATIENCE_S) == 0
    last = sorted((run_dir / "checkpoints").glob("[0-9]*"))[-1]
    assert (last / "shards" / ".metadata").exists()
    assert (run_dir / "reference" / "model.safetensors").exists()
    metrics = of_type(run_dir, "iteration_finished")[0]["metrics"]
    assert metrics["update/steps"] > 0
    assert metrics["kl/mean"] >= 0
    assert metrics["tokens/padding_share"] <= 0.03
    start = load_file(home / "policies" / "toy" / "model.safetensors")
    trained = stored_state(last)
    assert all(not torch.equal(weight, trained[f"model.{name}"]) for name, weight in start.items())


def test_sigterm_stops_in_order(home: Path) -> None:
    run_dir = make_run_dir(home, "stopped", toy_yard.training(home, iterations=500))
    with engine_process(run_dir) as process:
        assert wait_for(process, lambda: bool(of_type(run_dir, "iteration_finished")))
        process.terminate()
        assert process.wait(timeout=_PATIENCE_S) == 0
    last = events(run_dir)[-1]
    assert (last["type"], last["state"], last["reason"]) == ("run_finished", "stopped", "received SIGTERM")
    started = Counter(str(e["ref"]) for e in of_type(run_dir, "trajectory_started"))
    finished = Counter(str(e["ref"]) for e in of_type(run_dir, "trajectory_finished"))
    assert finished == started
    assert sandboxes(home) == []


def test_pause_resume_and_stop_from_the_web(home: Path) -> None:
    with ingest_server() as server:
        run_dir = make_run_dir(home, "paused", toy_yard.training(home, iterations=500), ingest_url=server.url)
        with engine_process(run_dir) as process:
            assert wait_for(process, lambda: _count(server, "iteration_finished") >= 1)
            server.desired = "pause"
            assert wait_for(process, lambda: _count(server, "run_paused") == 1)
            time.sleep(0.5)
            # The pool's last report comes up to 2 s after what it tells of.
            assert _work(server)[-1] == "run_paused"
            server.desired = "run"
            assert wait_for(process, lambda: _count(server, "run_resumed") == 1)
            server.desired = "stop"
            assert process.wait(timeout=_PATIENCE_S) == 0
        assert server.events[-1]["state"] == "stopped"


def test_a_fenced_process_ends_with_3_and_writes_nothing_more(home: Path) -> None:
    with ingest_server() as server:
        run_dir = make_run_dir(home, "fenced", toy_yard.training(home, iterations=500), ingest_url=server.url)
        with engine_process(run_dir) as process:
            assert wait_for(process, lambda: _count(server, "iteration_finished") >= 1)
            server.epoch = 2
            stored = len(server.events)
            assert process.wait(timeout=_PATIENCE_S) == 3
        assert len(server.events) == stored
        assert not of_type(run_dir, "run_finished")


def test_a_refused_event_fails_the_run_and_says_so_on_disk(home: Path) -> None:
    with ingest_server() as server:
        config = toy_yard.sampling(OraclePolicyConfig())
        run_dir = make_run_dir(home, "refused", config, ingest_url=server.url)
        server.faults = [Answer(422, {"detail": "no such field", "line": 1})]
        with engine_process(run_dir) as process:
            assert process.wait(timeout=_PATIENCE_S) == 1
        assert server.events == []
    failure = json.loads((run_dir / "failure.json").read_text())
    assert failure["epoch"] == 1
    assert "no such field" in failure["reason"]


def test_a_web_application_that_comes_late_gets_everything(home: Path) -> None:
    config = toy_yard.sampling(OraclePolicyConfig())
    with ingest_server() as server:
        server.faults = [Answer(503)] * 3
        run_dir = make_run_dir(home, "late", config, ingest_url=server.url)
        with engine_process(run_dir) as process:
            assert process.wait(timeout=_PATIENCE_S) == 0
        assert server.events == events(run_dir)


def test_a_wrong_configuration_fails_with_a_reason(home: Path) -> None:
    config = toy_yard.training(home, tasks_per_iteration=3)
    run_dir = make_run_dir(home, "wrong", config)
    with engine_process(run_dir) as process:
        assert process.wait(timeout=_PATIENCE_S) == 1
    last = events(run_dir)[-1]
    assert last["state"] == "failed"
    assert "trainer.tasks_per_iteration is 3, but the split has only 2 tasks" in last["reason"]


def _run_and_kill(run_dir: Path, *, after_lines: int | None) -> bool:
    """Run the next attempt, killing it once the spool has so many events; whether it finished."""
    with engine_process(run_dir) as process:
        if after_lines is None or not wait_for(process, lambda: len(events(run_dir)) >= after_lines):
            assert process.wait(timeout=_PATIENCE_S) == 0
            return True
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    return False


def _work(server: IngestServer) -> list[str]:
    """Types of the events, but for reports about sandboxes."""
    types = [event["type"] for event in server.events]
    return [name for name in types if name not in ("sandboxes_changed", "pool_status")]


def _count(server: IngestServer, name: str) -> int:
    with server.lock:
        return sum(event["type"] == name for event in server.events)


def test_no_secret_that_a_command_prints_is_recorded(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, token = "planted-secret-value", "secret.1"
    monkeypatch.setenv("PLANTED_API_KEY", known)
    call = "<function=execute_bash>\n<parameter=cmd>{}</parameter>\n</function>"
    prints = "printf 'planted-%s postgresql://u:hunter%s@db/x\\n' secret-value 2x; printf 'secret%s' .1"
    done = "<function=finish>\n<parameter=command>submit</parameter>\n</function>"
    source = tmp_path / "stored.jsonl"
    with source.open("w") as stream:
        for row in load_dataset(home, toy_yard.DATASET).split("train"):
            responses = [{"response": call.format(prints)}, {"response": done}]
            key = {"task_id": row.task.id, "index": 0}
            stream.write(json.dumps({"key": key, "steps": responses}) + "\n")
    run_dir = make_run_dir(home, "secrets", toy_yard.sampling(ReplayPolicyConfig(source=str(source))))
    with engine_process(run_dir) as process:
        assert process.wait(timeout=300) == 0
    observed = [event["observation"] for event in of_type(run_dir, "step_finished")]
    assert any("[redacted] postgresql://u:" in text for text in observed)
    written = (run_dir / "events.jsonl").read_text() + (run_dir / "engine.log").read_text()
    for secret in (known, token, "hunter2x"):
        assert secret not in written


def test_no_secret_of_an_error_is_recorded(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANTED_API_KEY", "planted-secret-value")
    missing = tmp_path / "planted-secret-value.jsonl"
    run_dir = make_run_dir(home, "secret-error", toy_yard.sampling(ReplayPolicyConfig(source=str(missing))))
    with engine_process(run_dir) as process:
        assert process.wait(timeout=300) == 1
    (last,) = of_type(run_dir, "run_finished")
    assert "[redacted].jsonl" in last["reason"]
    for name in ("events.jsonl", "engine.log", "failure.json"):
        text = (run_dir / name).read_text()
        assert "[redacted].jsonl" in text
        assert "planted-secret-value" not in text
