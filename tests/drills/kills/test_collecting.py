"""Collections and evaluations whose process is killed at random moments: nothing twice, nothing lost."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from engine.config.policies import OraclePolicyConfig, TransformerPolicyConfig
from engine.config.rollout import DatasetConfig, RolloutConfig
from engine.config.run import AnyRun, EvaluateRun
from engine.types import RunState
from tests.builders.web_builders import launched, relaunched
from tests.integration import toy_yard
from tests.integration.toy_yard import engine_process, events, make_run_dir, wait_for
from webapp.models import Dataset, Group, Step, Trajectory
from webapp.services.ingestion import ingest
from webapp.services.run import runs

_PATIENCE_S = 400.0


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with the toy dataset and its half-taught policy."""
    return toy_yard.taught_home(tmp_path_factory.mktemp("home"))


def finished(run_dir: Path) -> list[dict[str, Any]]:
    return [event for event in events(run_dir) if event["type"] == "trajectory_finished"]


def keys(run_dir: Path) -> Counter[tuple[str, int]]:
    """How often each rollout was reported as finished; sandboxes that fail are not counted."""
    return Counter(
        (event["ref"]["task_id"], event["ref"]["index"])
        for event in finished(run_dir)
        if event["reward"] is not None
    )


def kill_after(run_dir: Path, count: int) -> None:
    """Start an attempt and ``kill -9`` it once so many rollouts have been reported."""
    with engine_process(run_dir) as process:
        assert wait_for(process, lambda: len(finished(run_dir)) >= count)
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "it ended before it was killed"


def finish(run_dir: Path) -> None:
    with engine_process(run_dir) as process:
        assert process.wait(timeout=_PATIENCE_S) == 0
    assert events(run_dir)[-1]["state"] == "succeeded"


@pytest.mark.django_db
def test_a_collection_killed_three_times_is_whole_in_spool_and_database(home: Path) -> None:
    size, kills = 60, sorted(random.Random(11).sample(range(3, 80), 3))
    sampling = toy_yard.sampling(OraclePolicyConfig())
    config = sampling.model_copy(update={"rollout": RolloutConfig(group_size=size, max_concurrent=6)})
    Dataset.objects.create(name="quickstart")
    run, claim = launched(runs.create(recipe="quickstart-oracle"))
    for count in kills:
        run_dir = make_run_dir(home, str(run.pk), config, epoch=claim.epoch)
        kill_after(run_dir, count)
        if count != kills[1]:  # the web server is away in the second attempt
            ingest.ingest_spool(run_id=run.pk, path=run_dir / "events.jsonl")
        claim = relaunched(run, claim)
    finish(make_run_dir(home, str(run.pk), config, epoch=claim.epoch))
    ingest.ingest_spool(run_id=run.pk, path=run_dir / "events.jsonl")

    tasks = {event["ref"]["task_id"] for event in finished(run_dir)}
    expected = {(task, index) for task in tasks for index in range(size)}
    assert len(tasks) == 2
    assert keys(run_dir) == dict.fromkeys(expected, 1)
    kept = [event["rollouts_kept"] for event in events(run_dir) if event["type"] == "run_started"]
    assert kept[0] == 0
    assert [count for _, count in zip(kills, kept[1:], strict=True) if count] == kept[1:]
    rows = Trajectory.objects.filter(run=run)
    assert sorted(rows.values_list("task_key", "index")) == sorted(expected)
    assert set(rows.values_list("state", "termination", "reward")) == {("finished", "submitted", 1.0)}
    for trajectory in rows:
        indices = Step.objects.filter(trajectory=trajectory).values_list("index", flat=True)
        assert sorted(indices) == list(range(trajectory.num_steps))
    groups = Group.objects.filter(run=run).values_list("size", "num_finished", "num_solved")
    assert list(groups) == [(size, size, size)] * 2
    run.refresh_from_db()
    assert (run.state, run.progress_done, run.collection["graded"]) == (RunState.SUCCEEDED, 120, 120)
    assert run.summary["trajectories"] == 120


def evaluating(home: Path) -> EvaluateRun:
    """Eight attempts of the half-taught policy at each task."""
    return EvaluateRun(
        name="toy",
        dataset=DatasetConfig(name=toy_yard.DATASET, split="train"),
        sandbox=toy_yard.SANDBOX,
        agent=toy_yard.AGENT,
        grading=toy_yard.GRADING,
        policy=TransformerPolicyConfig(checkpoint=str(home / "policies" / "toy"), max_batch=4),
        rollout=RolloutConfig(group_size=8, max_concurrent=2),
    )


def result(run_dir: Path) -> dict[str, Any]:
    (found,) = (event for event in events(run_dir) if event["type"] == "evaluation_finished")
    found["metrics"] = {
        name: value
        for name, value in found["metrics"].items()
        if not name.startswith(("time/", "loop/", "sandbox/", "grading/"))
    }
    return {name: value for name, value in found.items() if name not in ("seq", "epoch", "time")}


def test_an_evaluation_killed_twice_has_the_numbers_of_one_go(home: Path) -> None:
    config: AnyRun = evaluating(home)
    whole = make_run_dir(home, "whole", config)
    finish(whole)
    for epoch, count in enumerate(sorted(random.Random(3).sample(range(1, 11), 2)), start=1):
        kill_after(make_run_dir(home, "killed", config, epoch=epoch), count)
    killed = make_run_dir(home, "killed", config, epoch=3)
    finish(killed)
    assert keys(killed) == keys(whole)
    assert len(keys(whole)) == 16
    assert result(killed) == result(whole)
    assert [entry["k"] for entry in result(whole)["pass_at_k"]] == [1, 2, 4, 8]
    rewards = {(e["ref"]["task_id"], e["ref"]["index"]): e["reward"] for e in finished(whole)}
    assert {(e["ref"]["task_id"], e["ref"]["index"]): e["reward"] for e in finished(killed)} == rewards
