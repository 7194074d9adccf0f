"""Progress of training by phase."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from engine.orchestrator import context as run_context
from engine.orchestrator.training import phases
from engine.orchestrator.training.phases import Plan, TrainingPhases
from engine.orchestrator.training.progress import TrainProgress
from engine.types import RolloutKey, RolloutPhase
from tests.unit.orchestrator.memory_sink import MemorySink, context
from tests.unit.orchestrator.test_rollout_counts import ended_rollout, finished_turn

PLAN = Plan(iterations=4, rollouts=8, evaluated=20, is_sync=True, every=2)


def key(index: int, phase: str = "train") -> RolloutKey:
    return RolloutKey(iteration=0, phase=phase, task_id="t", index=index)


def progress(sink: MemorySink) -> list[dict[str, Any]]:
    return [fields for name, fields in sink.events if name == "RunProgress"]


@pytest.mark.parametrize(("done", "expected"), [(0, 2), (1, 2), (2, 1), (3, 1), (4, 0)])
def test_evaluations_after_counts_those_still_due(done: int, expected: int) -> None:
    assert PLAN.evaluations_after(done) == expected


async def test_time_left_includes_evaluations_and_phases_name_what_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(phases, "time", SimpleNamespace(monotonic=lambda: now[0]))
    sink, counters = MemorySink(), TrainProgress()
    run = context(sink)
    reports = TrainingPhases(run, PLAN, counters)
    async with reports.evaluation("heldout", 20, kept=0, then=0):
        for index in range(20):
            run.rollouts.start(key(index, "eval:heldout"))
            run.rollouts.finish(ended_rollout(key(index, "eval:heldout")))
        now[0] = 40.0
    async with reports.rollouts():
        pass
    async with reports.update():
        pass
    counters.iteration = 4
    async with reports.evaluation("heldout", 20, kept=0, then=0):
        pass
    first, evaluated, collecting, collected, updating, last, ended = progress(sink)
    assert [(report["done"], report["total"]) for report in (evaluated, collected, ended)] == [
        (20, 20), (8, 8), (20, 20),
    ]  # fmt: skip
    assert collected["seconds_left"] == 2 * (3 * 8 + 2 * 20)
    assert ended["seconds_left"] is None
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


async def test_a_phase_is_reported_again_when_its_counts_change(monkeypatch: pytest.MonkeyPatch) -> None:
    beats = 0

    async def beat(_seconds: float) -> None:
        nonlocal beats
        beats += 1
        if beats > 4:
            ended.set()
            await forever.wait()
        if beats == 2:
            run.rollouts.enter(key(0), RolloutPhase.MODEL)
            run.rollouts.start(key(0))
            run.rollouts.step(key(0), finished_turn())

    ended, forever = asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(run_context, "asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": beat}))
    sink = MemorySink()
    run = context(sink)
    async with TrainingPhases(run, PLAN, TrainProgress()).rollouts():
        await ended.wait()
    assert {fields["message"] for fields in progress(sink)} == {"iteration 1 of 4: rollouts"}
    assert [fields["collection"].live for fields in progress(sink)] == [
        (("queued", 8),),
        (("queued", 7), ("sampling", 1), ("steps", 1)),
        (("sampling", 1), ("steps", 1)),
    ]


async def test_evaluation_progress_excludes_concurrent_training_rollouts() -> None:
    sink = MemorySink()
    run = context(sink)
    reports = TrainingPhases(run, replace(PLAN, is_sync=False), TrainProgress())
    async with reports.rollouts():
        run.rollouts.finish(ended_rollout(key(0)))
        run.rollouts.enter(key(1), RolloutPhase.MODEL)
        run.rollouts.start(key(1))
        run.rollouts.step(key(1), finished_turn())
    async with reports.evaluation("heldout", 20, kept=5, then=0):
        pass
    shown = [
        (report["message"], report["done"], report["total"], report["collection"].running)
        for report in progress(sink)
    ]
    assert shown == [
        ("iteration 1 of 4: rollouts", 0, 0, 0),
        ("iteration 1 of 4: rollouts", 0, 0, 1),
        ("evaluation 'heldout' before training", 5, 20, 0),
        ("evaluation 'heldout' before training", 20, 20, 0),
    ]


async def test_a_failed_report_is_raised_and_never_hides_the_error_of_the_body(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_context, "REPORT_EVERY_S", 0.0)
    reported = asyncio.Event()

    def report() -> None:
        reported.set()
        raise OSError("disk full")

    async def body(error: ValueError | None) -> None:
        reported.clear()
        async with run_context.repeating(report):
            await reported.wait()
            if error is not None:
                raise error

    with pytest.raises(OSError, match="disk full"):
        await body(None)
    with pytest.raises(ValueError, match="body"):
        await body(ValueError("body"))
