"""Progress of training by phase, and counts of rollouts in flight."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from engine.orchestrator.rollout_counts import RolloutCounts
from engine.orchestrator.training.phases import Plan, TrainingPhases
from engine.orchestrator.training.progress import TrainProgress
from engine.types import RolloutKey
from tests.unit.orchestrator.memory_sink import MemorySink, context

PLAN = Plan(iterations=4, rollouts=8, evaluated=20, every=2)


def key(index: int) -> RolloutKey:
    return RolloutKey(iteration=0, phase="train", task_id="t", index=index)


def progress(sink: MemorySink) -> list[dict[str, Any]]:
    return [fields for name, fields in sink.events if name == "RunProgress"]


def test_steps_of_rollouts_in_flight_are_counted_until_they_end() -> None:
    counts = RolloutCounts()
    for index in range(2):
        counts.start(key(index))
    for _ in range(3):
        counts.step(key(0))
    assert (counts.running, counts.live_steps, counts.finished) == (2, 3, 0)
    counts.finish(key(0))
    assert (counts.running, counts.live_steps, counts.finished) == (1, 0, 1)


@pytest.mark.parametrize(("done", "expected"), [(0, 2), (1, 2), (2, 1), (3, 1), (4, 0)])
def test_evaluations_still_due(done: int, expected: int) -> None:
    assert PLAN.evaluations_after(done) == expected


async def test_the_time_left_counts_evaluations_and_every_phase_names_what_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    sink, counters = MemorySink(), TrainProgress()
    run = context(sink)
    reports = TrainingPhases(run, PLAN, counters)
    async with reports.evaluation("heldout", 20, then=0):
        for index in range(20):
            run.rollouts.start(key(index))
            run.rollouts.finish(key(index))
        now[0] = 40.0
    async with reports.rollouts():
        pass
    async with reports.update():
        pass
    counters.iteration = 4
    async with reports.evaluation("heldout", 20, then=0):
        pass
    first, collecting, updating, last = progress(sink)
    assert (first["message"], first["done"], first["total"]) == (
        "evaluation 'heldout' before training",
        0,
        20,
    )
    assert (first["follows"], first["seconds_left"]) == ("4 iterations, 2 evaluations", None)
    assert (collecting["message"], collecting["total"]) == ("iteration 1 of 4: rollouts", 8)
    assert collecting["follows"] == "update, 3 iterations, 2 evaluations"
    assert collecting["seconds_left"] == 2 * (4 * 8 + 2 * 20), "two seconds a rollout"
    assert updating["seconds_left"] == 2 * (3 * 8 + 2 * 20)
    assert (last["message"], last["follows"]) == ("evaluation 'heldout' after 4 iterations", "")
    assert last["seconds_left"] == 2 * 20, "the last evaluation takes its time, too"


async def test_a_phase_is_reported_again_while_something_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    beats = 0

    async def beat(_seconds: float) -> None:
        nonlocal beats
        beats += 1
        if beats > 4:
            ended.set()
            await forever.wait()
        if beats == 2:
            run.rollouts.start(key(0))
            run.rollouts.step(key(0))

    ended, forever = asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(asyncio, "sleep", beat)
    sink = MemorySink()
    run = context(sink)
    async with TrainingPhases(run, PLAN, TrainProgress()).rollouts():
        await ended.wait()
    assert [fields["message"] for fields in progress(sink)] == [
        "iteration 1 of 4: rollouts",
        "iteration 1 of 4: rollouts (1 running, 1 steps)",
    ]
