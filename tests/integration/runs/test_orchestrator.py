"""Whole runs of scripted policies: real sandboxes, tests, processes and signals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from engine.config.policies import NoopPolicyConfig, OraclePolicyConfig, ReplayPolicyConfig
from engine.config.rollout import RolloutConfig
from engine.datasets.store import load_dataset
from engine.orchestrator import execute
from tests.fakes.ingest_server import Answer, ingest_server
from tests.integration import toy_yard
from tests.integration.toy_records import of_type, sandboxes
from tests.integration.toy_yard import engine_process, events, make_run_dir, open_context, wait_for

_PATIENCE_S = 400.0


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data folder with the toy dataset."""
    return toy_yard.dataset_home(tmp_path_factory.mktemp("home"))


def test_curation_reports_progress_and_result_as_events(home: Path) -> None:
    run_dir = home / "runs" / "curate"
    assert of_type(run_dir, "run_progress")
    assert of_type(run_dir, "run_finished")[0]["summary"]["tasks_train"] == 2


@pytest.mark.parametrize(
    ("policy", "rate"), [(OraclePolicyConfig(), 1.0), (NoopPolicyConfig(), 0.0)], ids=["oracle", "noop"]
)
def test_oracle_solves_every_task_and_noop_none(home: Path, tmp_path: Path, policy: Any, rate: float) -> None:
    """Run in a data folder that was moved."""
    moved = tmp_path / "moved"
    shutil.copytree(home, moved, symlinks=True)
    config = toy_yard.sampling(policy)
    with open_context(moved, f"run-{policy.type}", config) as run:
        assert execute(config, run) == 0
    finished = of_type(run.run_dir, "trajectory_finished")
    assert [event["reward"] for event in finished] == [rate, rate]
    assert {event["termination"] for event in finished} == {"submitted"}
    summary = of_type(run.run_dir, "run_finished")[0]["summary"]
    assert summary["solve_rate_last"] == rate
    assert summary["valid_calls"] == summary["responses_with_call"] == summary["responses"] > 0
    metrics = of_type(run.run_dir, "iteration_finished")[0]["metrics"]
    assert metrics["infra/rate"] == 0
    assert "machine/load" in metrics
    assert_sandboxes_are_reported(run.run_dir, rollouts=2)


def test_a_run_fails_when_infrastructure_loses_every_rollout(home: Path, tmp_path: Path) -> None:
    """A run without graded rollouts has no solve rate, rather than one of 0."""
    broken = tmp_path / "broken"
    shutil.copytree(home, broken, symlinks=True, ignore=shutil.ignore_patterns("toolchain"))
    config = toy_yard.sampling(OraclePolicyConfig())
    with open_context(broken, "broken", config) as run:
        assert execute(config, run) == 1
    last = events(run.run_dir)[-1]
    assert last["state"] == "failed"
    assert "infrastructure lost all 2 rollouts of iteration 0" in last["reason"]
    assert "toolchain" in last["reason"]
    assert "is missing" in last["reason"]


def assert_sandboxes_are_reported(run_dir: Path, *, rollouts: int) -> None:
    """Assert that every lease ended before the run and is counted in the histograms."""
    types = [event["type"] for event in events(run_dir)]
    assert types[-1] == "run_finished"
    assert max(i for i, name in enumerate(types) if name == "pool_status") > max(
        i for i, name in enumerate(types) if name == "sandboxes_changed"
    )
    states: dict[str, list[str]] = {}
    for event in of_type(run_dir, "sandboxes_changed"):
        for record in event["records"]:
            states.setdefault(record["lease"], []).append(record["state"])
    assert all(history[0] == "leased" and history[-1] == "closed" for history in states.values())
    last = of_type(run_dir, "pool_status")[-1]
    assert (last["wanted"], last["opened"], last["failures"], last["blocked"]) == (0, len(states), {}, {})
    counted = {name: sum(clock["counts"]) for name, clock in last["clocks"].items()}
    assert counted["start"] == counted["queue"] == len(states)
    assert counted["grade"] == rollouts
    actions = sum(event["tool"] != "" for event in of_type(run_dir, "step_finished"))
    assert counted["exec"] == actions
    finished = of_type(run_dir, "trajectory_finished")
    assert all(0 < event["start_seconds"] <= event["sandbox_seconds"] for event in finished)


def test_sigterm_stops_the_run_and_ends_its_rollouts(home: Path) -> None:
    config = toy_yard.sampling(OraclePolicyConfig())
    endless = config.model_copy(update={"rollout": RolloutConfig(group_size=1000, max_concurrent=4)})
    run_dir = make_run_dir(home, "stopped", endless)
    with engine_process(run_dir) as process:
        assert wait_for(process, lambda: bool(of_type(run_dir, "trajectory_finished")))
        process.terminate()
        assert process.wait(timeout=_PATIENCE_S) == 0
    last = events(run_dir)[-1]
    assert (last["type"], last["state"], last["reason"]) == ("run_finished", "stopped", "received SIGTERM")
    started = {str(event["ref"]) for event in of_type(run_dir, "trajectory_started")}
    assert {str(event["ref"]) for event in of_type(run_dir, "trajectory_finished")} == started
    assert sandboxes(home) == []


@pytest.mark.parametrize(
    ("epoch", "faults", "code"),
    [(2, [], 3), (1, [Answer(422, {"detail": "no such field", "line": 1})], 1)],
    ids=["fenced", "refused"],
)
def test_attempt_refused_by_the_server_ends_without_sending_events(
    home: Path, epoch: int, faults: list[Answer | None], code: int
) -> None:
    """A fenced attempt records no end; a refused event fails the run and is recorded on disk."""
    with ingest_server() as server:
        config = toy_yard.sampling(OraclePolicyConfig())
        run_dir = make_run_dir(home, f"not-accepted-{code}", config, ingest_url=server.url)
        server.epoch, server.faults = epoch, faults
        with engine_process(run_dir) as process:
            assert process.wait(timeout=_PATIENCE_S) == code
        assert server.events == []
    if code == 3:
        assert not of_type(run_dir, "run_finished")
        return
    failure = json.loads((run_dir / "failure.json").read_text())
    assert failure["epoch"] == 1
    assert "no such field" in failure["reason"]


def test_events_reach_a_late_server_without_secrets_printed_by_commands(
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
    config = toy_yard.sampling(ReplayPolicyConfig(source=str(source)))
    with ingest_server() as server:
        server.faults = [Answer(503)] * 3
        run_dir = make_run_dir(home, "secrets", config, ingest_url=server.url)
        with engine_process(run_dir) as process:
            assert process.wait(timeout=_PATIENCE_S) == 0
        assert server.events == events(run_dir)
    observed = [event["observation"] for event in of_type(run_dir, "step_finished")]
    assert any("[redacted] postgresql://u:" in text for text in observed)
    written = (run_dir / "events.jsonl").read_text() + (run_dir / "engine.log").read_text()
    for secret in (known, token, "hunter2x"):
        assert secret not in written


def test_secrets_in_errors_are_not_recorded(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANTED_API_KEY", "planted-secret-value")
    missing = tmp_path / "planted-secret-value.jsonl"
    run_dir = make_run_dir(home, "secret-error", toy_yard.sampling(ReplayPolicyConfig(source=str(missing))))
    with engine_process(run_dir) as process:
        assert process.wait(timeout=_PATIENCE_S) == 1
    (last,) = of_type(run_dir, "run_finished")
    assert "[redacted].jsonl" in last["reason"]
    for name in ("events.jsonl", "engine.log", "failure.json"):
        text = (run_dir / name).read_text()
        assert "[redacted].jsonl" in text
        assert "planted-secret-value" not in text
