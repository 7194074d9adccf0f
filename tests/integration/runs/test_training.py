"""Training runs in this process: real sandboxes and tests, and a tiny policy that learns."""

from __future__ import annotations

import base64
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.config.run import TrainRun
from engine.events.delivery.control import Control
from engine.events.delivery.spool import SpoolSink
from engine.events.token_block import decode
from engine.events.token_trace import decode_trace
from engine.orchestrator import execute
from engine.orchestrator.context import RunContext
from engine.types import RunState
from tests.builders.cut_runs import cut_off
from tests.builders.web.web_builders import launched
from tests.fakes.ingest_server import terminal_keys
from tests.integration import toy_yard
from tests.integration.toy_records import (
    assert_every_rollout_trained_once,
    assert_same_state,
    expected_keys,
    of_type,
    sandboxes,
    weights,
)
from tests.integration.toy_yard import events, make_run_dir
from webapp.ingestion.services import ingest
from webapp.models import Event, Iteration, TokenTrace, Trajectory

React = Callable[[Control, str], None]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data folder with the toy dataset and its partly trained policy."""
    return toy_yard.taught_home(tmp_path_factory.mktemp("home"))


class WatchedSink(SpoolSink):
    """Spool sink that calls a function with the type of each recorded event."""

    on_event: Callable[[str], None] = staticmethod(lambda _type: None)

    def emit(self, event_type: type[Any], /, **fields: Any) -> int:
        seq = super().emit(event_type, **fields)
        self.on_event(event_type.model_fields["type"].default)
        return seq


def train(home: Path, name: str, config: TrainRun, *, epoch: int = 1, react: React | None = None) -> Path:
    """Run an attempt and assert that it succeeds."""
    run_dir, control = make_run_dir(home, name, config, epoch=epoch), Control()
    sink = WatchedSink(run_dir, epoch=epoch)
    if react is not None:
        sink.on_event = lambda event: react(control, event)
    run = RunContext(run_id=name, epoch=epoch, run_dir=run_dir, home=home, sink=sink, control=control)
    try:
        assert execute(config, run) == 0, events(run_dir)[-1]
    finally:
        sink.close()
    return run_dir


@pytest.fixture(scope="module")
def whole(home: Path) -> Path:
    """Folder of an uninterrupted run of two iterations."""
    return train(home, "whole", toy_yard.training(home))


def test_training_updates_the_policy_and_reports_all_events(home: Path, whole: Path) -> None:
    recorded = events(whole)
    assert [event["seq"] for event in recorded] == list(range(1, len(recorded) + 1))
    assert recorded[0]["type"] == "run_started"
    assert recorded[0]["resumed_from"] is None
    assert recorded[-1]["type"] == "run_finished"
    assert recorded[-1]["state"] == "succeeded"
    iterations = of_type(whole, "iteration_finished")
    assert [event["iteration"] for event in iterations] == [0, 1]
    assert [event["policy_version"] for event in iterations] == [1, 2]
    assert all(event["metrics"]["mismatch/max"] < 1e-4 for event in iterations)
    assert [event["iteration"] for event in of_type(whole, "checkpoint_saved")] == [0, 1, 2]
    assert len(of_type(whole, "group_finished")) == 4
    finished = of_type(whole, "trajectory_finished")
    assert Counter(tuple(event["ref"].values()) for event in finished) == expected_keys(home)
    trained = [event for event in finished if event["ref"]["phase"] == "train"]
    records = [decode(base64.b64decode(event["tokens"])) for event in trained]
    assert all(record.logprobs[record.mask].any() for record in records)
    assert not any(record.logprobs[~record.mask].any() for record in records)
    traced = of_type(whole, "trajectory_trained")
    assert Counter(event["iteration"] for event in traced) == {0: 4, 1: 4}, "one group of two"
    by_key = {tuple(event["ref"].values()): record for event, record in zip(trained, records, strict=True)}
    for event in traced:
        trace, record = decode_trace(base64.b64decode(event["tokens"])), by_key[tuple(event["ref"].values())]
        assert len(trace) == record.num_sampled
        assert set(trace.texts) == set(record.ids[record.mask].tolist())
    evaluations = [(e["iteration"], e["name"]) for e in of_type(whole, "evaluation_finished")]
    assert evaluations == [(0, "heldout"), (0, "train"), (2, "heldout"), (2, "train")]
    assert sandboxes(home) == []


@pytest.mark.django_db
def test_events_of_a_training_run_are_ingested_as_rows(home: Path, whole: Path) -> None:
    run, _ = launched()
    ingest.ingest_spool(run_id=run.pk, path=whole / "events.jsonl")
    run.refresh_from_db()
    assert (run.state, run.last_seq) == (RunState.SUCCEEDED, len(events(whole)))
    assert Event.objects.filter(run=run).count() == run.last_seq
    rows = Trajectory.objects.filter(run=run, state="finished")
    keys = rows.values_list("iteration", "phase", "task_key", "index")
    assert Counter(keys) == expected_keys(home)
    assert Iteration.objects.filter(run=run, finished_at__isnull=False).count() == 2
    assert TokenTrace.objects.filter(trajectory__run=run).count() == 8


@pytest.mark.parametrize(
    ("iterations", "rollouts"),
    [(0, 1), (1, 3), (2, 3)],
    ids=["first evaluation", "training", "last evaluation"],
)
def test_attempt_after_a_kill_reproduces_the_uninterrupted_run(
    home: Path, whole: Path, iterations: int, rollouts: int
) -> None:
    """After a kill in an evaluation, finished rollouts and earlier evaluations are kept."""
    known = len(cut_off(whole, home / "runs" / f"cut-{iterations}", iterations=iterations, rollouts=rollouts))
    run_dir = train(home, f"cut-{iterations}", toy_yard.training(home), epoch=2)
    (started,) = [event for event in events(run_dir)[known:] if event["type"] == "run_started"]
    assert started["resumed_from"] == iterations
    assert Counter(terminal_keys(events(run_dir))) == expected_keys(home)
    evaluated = [
        event for event in of_type(run_dir, "trajectory_finished") if event["ref"]["phase"] != "train"
    ]
    assert len(evaluated) == 8, "none twice"
    assert results(run_dir) == results(whole)
    assert weights(run_dir) == weights(whole)
    assert_same_state(run_dir, whole)


def results(run_dir: Path) -> list[dict[str, Any]]:
    """Return the results of a run's evaluations in order."""
    names = ("iteration", "name", "num_samples", "num_solved", "pass_at_k")
    return [{name: event[name] for name in names} for event in of_type(run_dir, "evaluation_finished")]


def test_run_pauses_resumes_and_stops_in_order(home: Path) -> None:
    def react(control: Control, event: str) -> None:
        match event:
            case "iteration_finished":
                control.set_desired("pause")
            case "run_paused":
                control.set_desired("run")
            case "run_resumed":
                control.stop("a person stopped it")

    run_dir = train(home, "disturbed", toy_yard.training(home, iterations=500), react=react)
    types = [event["type"] for event in events(run_dir)]
    assert [types.count(name) for name in ("iteration_finished", "run_paused", "run_resumed")] == [1, 1, 1]
    last = events(run_dir)[-1]
    assert (last["type"], last["state"], last["reason"]) == ("run_finished", "stopped", "a person stopped it")
    between = types[types.index("run_paused") + 1 : types.index("run_resumed")]
    assert set(between) <= {"sandboxes_changed", "pool_status", "system_sampled"}
    started = Counter(str(event["ref"]) for event in of_type(run_dir, "trajectory_started"))
    assert Counter(str(event["ref"]) for event in of_type(run_dir, "trajectory_finished")) == started
    assert sandboxes(home) == []


@pytest.fixture(scope="module")
def asynchronous(home: Path) -> Path:
    """Folder of a run that collects rollouts while the trainer updates."""
    return train(home, "async", toy_yard.overlapping(home, mode="async", max_staleness=2))


def test_asynchronous_run_collects_while_the_trainer_updates(home: Path, asynchronous: Path) -> None:
    assert_every_rollout_trained_once(asynchronous, iterations=4)
    assert sandboxes(home) == []
    finished = of_type(asynchronous, "iteration_finished")
    assert [event["iteration"] for event in finished] == list(range(4))
    assert finished[-1]["policy_version"] == 4
    assert 0 < max(event["metrics"]["staleness/max"] for event in finished) <= 2
    for event in finished:  # sampler and trainer agree without staleness
        if "mismatch/max" in event["metrics"] and event["metrics"]["staleness/max"] == 0:
            assert event["metrics"]["mismatch/max"] < 1e-4
    lanes = [{lane["name"]: lane for lane in event["timeline"]["lanes"]} for event in finished]
    assert all(iteration_lanes["trainer"]["seconds"] > 0 for iteration_lanes in lanes)
    for name in ("engines", "sandbox", "grading"):
        assert sum(iteration_lanes[name]["rollout_seconds"] for iteration_lanes in lanes) > 0
    order = [event["type"] for event in events(asynchronous)]
    assert order.index("batch_selected") < order.index("iteration_finished")


def test_asynchronous_run_is_reproduced_from_its_record(home: Path, asynchronous: Path) -> None:
    """The same batches in the same order give the same weights bit for bit, without a rollout."""
    repeated = make_run_dir(home, "again", toy_yard.overlapping(home, mode="async", max_staleness=2))
    shutil.copy(asynchronous / "events.jsonl", repeated / "events.jsonl")
    known = len(events(repeated))
    train(home, "again", toy_yard.overlapping(home, mode="async", max_staleness=2), epoch=2)
    rollouts = {"trajectory_started", "step_finished", "trajectory_finished"}
    new = [event for event in events(repeated)[known:] if event["type"] in rollouts]
    assert not [event for event in new if event["ref"]["phase"] == "train"]
    assert weights(repeated) == weights(asynchronous)
