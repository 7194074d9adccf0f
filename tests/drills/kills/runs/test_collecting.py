"""Collections killed at random moments: no rollout is lost or duplicated."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from engine.config.policies import OraclePolicyConfig
from engine.config.rollout import RolloutConfig
from engine.types import RunState
from tests.builders.web.web_builders import launched, relaunched
from tests.integration import toy_yard
from tests.integration.toy_yard import events, finish, kill_when, make_run_dir
from webapp.ingestion.services import ingest
from webapp.models import Dataset, Group, Step, Trajectory
from webapp.runs.services import runs


def finished(run_dir: Path) -> list[dict[str, Any]]:
    return [event for event in events(run_dir) if event["type"] == "trajectory_finished"]


def keys(run_dir: Path) -> Counter[tuple[str, int]]:
    """Count the reports of each finished rollout, without those lost to infrastructure."""
    return Counter(
        (event["ref"]["task_id"], event["ref"]["index"])
        for event in finished(run_dir)
        if event["reward"] is not None
    )


@pytest.mark.django_db
def test_collection_killed_three_times_is_complete_in_spool_and_database(home: Path) -> None:
    size, kills = 60, sorted(random.Random(11).sample(range(3, 80), 3))
    sampling = toy_yard.sampling(OraclePolicyConfig())
    config = sampling.model_copy(update={"rollout": RolloutConfig(group_size=size, max_concurrent=6)})
    Dataset.objects.create(name="quickstart")
    run, claim = launched(runs.create(recipe="quickstart-oracle"))
    for count in kills:
        run_dir = make_run_dir(home, str(run.pk), config, epoch=claim.epoch)
        kill_when(run_dir, lambda count=count, at=run_dir: len(finished(at)) >= count)  # type: ignore[misc]
        if count != kills[1]:  # the web server is down during the second attempt
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
