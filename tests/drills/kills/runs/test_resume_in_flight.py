"""Training runs killed during rollouts, which resume from the recorded steps."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from engine.config.learning.training import ScheduleConfig
from engine.config.run import TrainRun
from tests.integration import toy_yard
from tests.integration.toy_records import assert_same_state, of_type, sandboxes, weights
from tests.integration.toy_yard import events, finish, kill_when, make_run_dir

Key = tuple[int, str, int]


def training(home: Path, **schedule: Any) -> TrainRun:
    """Configure two iterations of one group, two rollouts at a time, and a checkpoint only at the start."""
    config = toy_yard.training(home, concurrent=2, tasks_per_iteration=1, minibatches=1, checkpoint_every=2)
    changes = {
        "rollout": config.rollout.model_copy(update={"resume_in_flight": "replay"}),
        "schedule": ScheduleConfig(**schedule),
        "evaluation": config.evaluation.model_copy(update={"samples": 1, "train_samples": 0}),
    }
    return TrainRun.model_validate(config.model_copy(update=changes).model_dump())


def key(event: dict[str, Any]) -> Key:
    ref = event["ref"]
    return ref["iteration"], ref["task_id"], ref["index"]


def of_training(spooled: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in spooled if event["type"] == name and event["ref"]["phase"] == "train"]


def graded(spooled: list[dict[str, Any]]) -> list[Key]:
    finished = of_training(spooled, "trajectory_finished")
    return [key(event) for event in finished if event["reward"] is not None]


def in_flight(spooled: list[dict[str, Any]]) -> dict[Key, int]:
    """Count the finished steps of each rollout in flight; graded rollouts have 0."""
    return dict(Counter(map(key, of_training(spooled, "step_finished")))) | dict.fromkeys(graded(spooled), 0)


def kill_in_flight(run_dir: Path, *, finished: int) -> dict[Key, int]:
    """Kill the run with ``finished`` rollouts graded and another in flight; return those in flight."""

    def is_due() -> bool:
        spooled = events(run_dir)
        return len(graded(spooled)) >= finished and any(in_flight(spooled).values())

    kill_when(run_dir, is_due)
    return {rollout: steps for rollout, steps in in_flight(events(run_dir)).items() if steps}


def kill_and_resume(home: Path, name: str, config: TrainRun, *, finished: int) -> Path:
    """Kill and resume a run; check that finished rollouts are kept and recorded steps are replayed."""
    run_dir = make_run_dir(home, name, config)
    interrupted = kill_in_flight(run_dir, finished=finished)
    assert interrupted, "rollouts were in flight"
    known = events(run_dir)
    before = graded(known)
    recorded = {
        (key(event), event["index"]): event["sampled"]["tokens"]
        for event in of_training(known, "step_finished")
    }
    make_run_dir(home, name, config, epoch=2)
    finish(run_dir)
    added = events(run_dir)[len(known) :]
    (started,) = [event for event in added if event["type"] == "run_started"]
    assert started["rollouts_kept"] == len(before)
    rolled_out = [event for event in added if event.get("ref", {}).get("phase") == "train"]
    assert not {key(event) for event in rolled_out} & set(before), "finished rollouts were kept"
    steps = [event for event in rolled_out if event["type"] == "step_finished"]
    replayed = [event for event in steps if event["replayed"]]
    assert Counter(key(event) for event in replayed) == interrupted
    for event in replayed:
        assert event["sampled"]["tokens"] == recorded[key(event), event["index"]]
    ended = {key(event): event for event in rolled_out if event["type"] == "trajectory_finished"}
    for rollout, count in interrupted.items():
        assert ended[rollout]["replay"] == {"recorded": count, "replayed": count, "differences": []}
    assert not any(event["replay"] for rollout, event in ended.items() if rollout not in interrupted)
    counts = Counter((key(event), event["index"]) for event in steps)
    assert set(counts.values()) == {1}, "no step is made twice"
    assert set(Counter(graded(events(run_dir))).values()) == {1}
    assert sandboxes(home) == []
    return run_dir


def test_synchronous_run_resumed_in_flight_matches_an_uninterrupted_run(home: Path) -> None:
    """The kill is in the second iteration; the only checkpoint is from before the first.

    The sampler checks batch invariance at its first request; the repeated iteration makes none.
    """
    config = training(home)
    whole = finish(make_run_dir(home, "whole", config))
    run_dir = kill_and_resume(home, "killed", config, finished=4)
    assert weights(run_dir) == weights(whole)
    assert_same_state(run_dir, whole, but="sampling/batch_invariant")


def test_asynchronous_run_resumed_in_flight_trains_on_every_rollout_once(home: Path) -> None:
    config = training(home, mode="async", max_staleness=1)
    run_dir = kill_and_resume(home, "async", config, finished=1)
    trained = Counter(
        (group["iteration"], group["task_id"], index)
        for event in of_type(run_dir, "batch_selected")
        for group in event["groups"]
        for index in group["indices"]
    )
    assert trained == Counter(graded(events(run_dir)))
    assert len(trained) == 8
