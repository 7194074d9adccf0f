"""Small parts of the orchestrator: task order, spread, metrics, events, pausing and stopping."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.config.policies import TransformerPolicyConfig
from engine.config.rollout import AgentConfig
from engine.errors import ConfigError, FencedError, SandboxError
from engine.events.delivery.control import Control
from engine.events.token_block import decode
from engine.events.types import EVENT_ADAPTER, StepFinished, TrajectoryFinished
from engine.orchestrator import context as contexts
from engine.orchestrator.context import Pace, RunStopped
from engine.orchestrator.evaluations import spread
from engine.orchestrator.policies import policies
from engine.orchestrator.training.curriculum import TaskCursor
from engine.orchestrator.training.prefetch import Prefetch
from engine.orchestrator.watch.event_observer import EventObserver, step_fields, trajectory_fields
from engine.orchestrator.watch.metrics import iteration_metrics
from engine.tokens import TokenRecord
from engine.types import (
    Grade,
    Group,
    RolloutKey,
    Step,
    TaskRow,
    TerminationReason,
    ToolCall,
    Trajectory,
    Verdict,
)
from tests.builders.rollout_builders import make_row
from tests.unit.orchestrator.memory_sink import MemorySink, context


def trajectory(
    *,
    task_id: str = "t",
    reward: float | None = 1.0,
    termination: TerminationReason = TerminationReason.SUBMITTED,
    phase: str = "train",
    steps: Sequence[Step] = (),
    index: int = 0,
) -> Trajectory:
    verdict = {1.0: Verdict.PASSED, 0.0: Verdict.FAILED}.get(reward if reward is not None else -1.0)
    return Trajectory(
        key=RolloutKey(iteration=0, phase=phase, task_id=task_id, index=index),
        steps=tuple(steps),
        termination=termination,
        grade=Grade(verdict=verdict or Verdict.INFRA_ERROR, reward=reward),
        prompt="deepswe_v1",
        prompt_hash="0" * 16,
        tokens=TokenRecord(ids=(1, 2), mask=(0, 1), logprobs=(0.0, -1.5), versions=(-1, 3), steps=(-1, 0)),
    )


def step(**fields: Any) -> Step:
    defaults: dict[str, Any] = {
        "index": 0,
        "thought": "",
        "response": "",
        "call": ToolCall(name="finish", arguments={"command": "submit"}),
        "observation": "",
    }
    return Step(**{**defaults, **fields})


def names(rows: Sequence[TaskRow]) -> list[str]:
    return [r.task.id for r in rows]


def test_every_pass_uses_every_task_once_and_no_iteration_repeats_a_task() -> None:
    rows = [make_row(f"t{i}") for i in range(7)]
    cursor = TaskCursor(rows, per_iteration=3, seed=5)
    drawn = [names(cursor.take()) for _ in range(70)]
    assert all(len(set(iteration)) == 3 for iteration in drawn)
    counts = {name: sum(name in iteration for iteration in drawn) for name in names(rows)}
    assert set(counts.values()) == {30}
    assert drawn[0] + drawn[1] != names(rows)[:6]


async def test_images_are_prefetched_one_request_at_a_time_and_failures_are_ignored() -> None:
    class Slow:
        def __init__(self) -> None:
            self.asked: list[list[str]] = []
            self.go = asyncio.Event()

        async def prepare(self, rows: Sequence[TaskRow], *, group_size: int) -> None:
            self.asked.append(names(rows) * group_size)
            await self.go.wait()
            raise SandboxError("the registry is away")

    slow = Slow()
    prefetch = Prefetch(slow, group_size=2)  # type: ignore[arg-type]
    prefetch.start([make_row("a"), make_row("b")])
    await asyncio.sleep(0)
    prefetch.start([make_row("c")])
    await asyncio.sleep(0)
    assert slow.asked == [["a", "b", "a", "b"]], "one request at a time"
    slow.go.set()
    while len(slow.asked) == 1:
        prefetch.start([make_row("c")])
        await asyncio.sleep(0)
    assert slow.asked[1:] == [["c", "c"]]
    await prefetch.close()


def test_a_restored_cursor_continues_with_the_same_tasks() -> None:
    rows = [make_row(f"t{i}") for i in range(5)]
    first = TaskCursor(rows, per_iteration=2, seed=1)
    for _ in range(4):
        first.take()
    state = json.loads(json.dumps(first.state_dict()))
    second = TaskCursor(rows, per_iteration=2, seed=1)
    second.load_state_dict(state)
    assert [names(second.take()) for _ in range(9)] == [names(first.take()) for _ in range(9)]
    with pytest.raises(ConfigError, match="no longer"):
        TaskCursor([make_row("other")], per_iteration=1, seed=1).load_state_dict(
            {"passes": 1, "remaining": ["t0"]}
        )


def test_more_tasks_per_iteration_than_tasks_is_an_error() -> None:
    with pytest.raises(ConfigError, match="only 2"):
        TaskCursor([make_row("a"), make_row("b")], per_iteration=3, seed=0)


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        (5, [("t0", 2), ("t1", 2), ("t2", 1)]),
        (3, [("t0", 1), ("t1", 1), ("t2", 1)]),
        (2, [("t0", 1), ("t1", 1)]),
        (1, [("t0", 1)]),
    ],
)
def test_evaluation_samples_are_spread_evenly(samples: int, expected: list[tuple[str, int]]) -> None:
    requests = spread([make_row(f"t{i}") for i in range(3)], samples, iteration=4, phase="eval:heldout")
    assert [(request.row.task.id, request.size) for request in requests] == expected
    assert {(request.iteration, request.phase) for request in requests} == {(4, "eval:heldout")}


def test_time_left_is_estimated_from_the_rate_since_the_last_start(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(contexts, "time", SimpleNamespace(monotonic=lambda: now))
    pace = Pace()
    assert pace.seconds_left(500, 1000) is None, "what an earlier attempt did tells nothing about this one"
    now = 110.0
    assert pace.seconds_left(510, 1000) == pytest.approx(490.0)
    assert pace.seconds_left(1000, 1000) is None
    pace.restart()
    assert pace.seconds_left(510, 1000) is None


def test_reward_metrics_exclude_infrastructure_failures() -> None:
    def group(name: str, *rewards: float | None) -> Group:
        members = tuple(trajectory(task_id=name, reward=r, index=i) for i, r in enumerate(rewards))
        return Group(iteration=0, phase="train", task=make_row(name).task, trajectories=members)

    metrics = iteration_metrics([group("a", 1.0, 0.0), group("b", 1.0, None), group("c", 0.0, 0.0)]).metrics()
    assert metrics["reward/mean"] == pytest.approx(2 / 5)
    assert metrics["solve/rate"] == pytest.approx(2 / 5)
    assert metrics["infra/rate"] == pytest.approx(1 / 6)
    assert [metrics[f"solve/{share}"] for share in ("none", "partial", "all")] == [pytest.approx(1 / 3)] * 3
    assert metrics["verdict/infra_error"] == pytest.approx(1 / 6)
    assert metrics["termination/submitted"] == 1.0


def test_groups_ended_only_by_time_limits_do_not_count_as_unsolved() -> None:
    def group(name: str, *members: Trajectory) -> Group:
        return Group(iteration=0, phase="train", task=make_row(name).task, trajectories=members)

    def failed(name: str, index: int, reason: TerminationReason) -> Trajectory:
        return replace(trajectory(task_id=name, reward=0.0, index=index), termination=reason)

    late, submitted = TerminationReason.ROLLOUT_TIMEOUT, TerminationReason.SUBMITTED
    groups = [
        group("late", failed("late", 0, late), failed("late", 1, late)),
        group("mixed", failed("mixed", 0, late), failed("mixed", 1, submitted)),
        group("solved", failed("solved", 0, late), trajectory(task_id="solved", reward=1.0, index=1)),
        group("lost", trajectory(task_id="lost", reward=None)),
    ]
    metrics = iteration_metrics(groups).metrics()
    shares = {name: metrics[f"solve/{name}"] for name in ("cut_short", "none", "partial", "all")}
    assert shares == pytest.approx({"cut_short": 1 / 3, "none": 1 / 3, "partial": 1 / 3, "all": 0.0})


def test_extra_share_is_the_fraction_of_grading_time_spent_on_extra_runs() -> None:
    grades = [
        Grade(verdict=Verdict.PASSED, reward=1.0, seconds=4.0, extra_seconds=3.0),
        Grade(verdict=Verdict.FAILED, reward=0.0, seconds=2.0),
        Grade(verdict=Verdict.PASSED, reward=1.0, seconds=0.0, reused=True),
    ]
    members = tuple(replace(trajectory(index=i), grade=grade) for i, grade in enumerate(grades))
    group = Group(iteration=0, phase="train", task=make_row("t").task, trajectories=members)
    assert iteration_metrics([group]).metrics()["grading/extra_share"] == 0.5
    assert iteration_metrics([]).metrics()["grading/extra_share"] == 0.0


def test_length_metrics_are_means_over_steps_and_trajectories() -> None:
    steps = [
        step(prompt_tokens=10, generated_tokens=4, thinking_tokens=2),
        step(index=1, prompt_tokens=30, generated_tokens=8, thinking_tokens=4, call=None),
    ]
    unknown = [step(thinking_tokens=8), step(index=1, thinking_tokens=None)]
    members = (trajectory(steps=steps), trajectory(steps=steps[:1], index=1))
    group = Group(iteration=0, phase="train", task=make_row("t").task, trajectories=members)
    metrics = iteration_metrics([group]).metrics()
    assert metrics["steps/mean"] == 1.5
    assert metrics["tokens/response_mean"] == 8
    assert metrics["tokens/prompt_mean"] == 10
    assert metrics["steps/unparsed"] == pytest.approx(1 / 3)
    assert metrics["conversation/forks"] == 0
    for known, thinking in ((members, 8 / 3), (members[:1], 3), ((), None)):
        mixed = replace(group, trajectories=(*known, trajectory(steps=unknown, index=2)))
        assert iteration_metrics([mixed]).metrics().get("tokens/thinking_per_step") == (
            None if thinking is None else pytest.approx(thinking)
        ), "unknown, not 0"


def test_a_step_with_invalid_characters_becomes_a_valid_event() -> None:
    hostile = step(
        thought="\ud800 lone",
        observation="nul \0 and \x1b[2J",
        call=ToolCall(name="execute_bash", arguments={"cmd": "\udfff", "n": [1, "\ud801"]}),
    )
    reference = {"iteration": 0, "phase": "train", "task_id": "t", "index": 0}
    event = StepFinished(seq=1, epoch=1, time=0.0, ref=reference, **step_fields(hostile))
    parsed = EVENT_ADAPTER.validate_json(event.model_dump_json())
    assert isinstance(parsed, StepFinished)
    assert parsed.thought == "? lone"
    assert parsed.observation == "nul \0 and \x1b[2J"
    assert parsed.arguments == {"cmd": "?", "n": [1, "?"]}


@pytest.mark.parametrize(("phase", "travels"), [("train", True), ("eval:heldout", False)])
def test_only_events_of_training_trajectories_contain_tokens(phase: str, travels: bool) -> None:
    finished = trajectory(phase=phase, steps=[step(generated_tokens=3, policy_version=4)])
    event = TrajectoryFinished(seq=1, epoch=1, time=0.0, **trajectory_fields(finished))
    assert (event.tokens is not None) == travels
    if event.tokens is not None:
        assert decode(event.tokens.data) == finished.tokens
    assert event.generated_tokens == 3
    assert (event.policy_version_min, event.policy_version_max) == (4, 4)
    assert event.reward == 1.0
    assert (event.prompt, event.prompt_hash) == ("deepswe_v1", "0" * 16)


@pytest.mark.parametrize(
    ("thinking", "costs", "wanted"),
    [
        ((2, 3), (0.25, 0.5), (5, 0.75)),
        ((2, None), (None, 0.5), (None, 0.5)),
        ((0, 0), (None, None), (0, None)),
    ],
)
def test_events_contain_the_usage_reported_by_an_endpoint(
    thinking: tuple[int | None, ...], costs: tuple[float | None, ...], wanted: tuple[int | None, float | None]
) -> None:
    steps = [
        step(index=index, cached_tokens=10, thinking_tokens=count, cost=cost, provider_state={"a": [index]})
        for index, (count, cost) in enumerate(zip(thinking, costs, strict=True))
    ]
    reference = {"iteration": 0, "phase": "train", "task_id": "t", "index": 0}
    for source in steps:
        event = StepFinished(seq=1, epoch=1, time=0.0, ref=reference, **step_fields(source))
        parsed = EVENT_ADAPTER.validate_json(event.model_dump_json())
        assert isinstance(parsed, StepFinished)
        assert (parsed.cached_tokens, parsed.thinking_tokens, parsed.cost) == (
            10, source.thinking_tokens, source.cost,
        )  # fmt: skip
        assert parsed.provider_state == source.provider_state
    fields = trajectory_fields(replace(trajectory(steps=steps), tokens=TokenRecord()))
    finished = EVENT_ADAPTER.validate_json(
        TrajectoryFinished(seq=1, epoch=1, time=0.0, **fields).model_dump_json()
    )
    assert isinstance(finished, TrajectoryFinished)
    assert finished.tokens is None
    assert (finished.cached_tokens, finished.thinking_tokens, finished.cost) == (20, *wanted)


class GatedSink(MemorySink):
    """Sink that blocks every event until its gate is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.gate = threading.Event(), threading.Event()

    def emit(self, event_type: type[Any], /, **fields: Any) -> int:
        self.entered.set()
        assert self.gate.wait(240)
        return super().emit(event_type, **fields)


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_finished_trajectories_are_recorded_in_a_thread_and_despite_a_stop(
    is_stopped: bool,
) -> None:
    sink = GatedSink()
    recording = asyncio.create_task(EventObserver(sink).trajectory_finished(trajectory()))
    await asyncio.sleep(0)
    if is_stopped:
        recording.cancel()
    while not sink.entered.is_set():  # advances only if the loop is not blocked
        await asyncio.sleep(0.001)
    assert not recording.done()
    sink.gate.set()
    await asyncio.wait({recording})
    assert recording.cancelled() is is_stopped
    assert is_stopped or recording.exception() is None
    assert [name for name, _ in sink.events] == ["TrajectoryFinished"]


@pytest.mark.parametrize("then", ["run", "stop"])
async def test_a_pause_is_reported_and_ends_by_resuming_or_stopping(then: Any) -> None:
    sink, control = MemorySink(), Control()
    run = context(sink, control)
    await run.safe_point()
    assert sink.events == []
    control.set_desired("pause")
    waiting = asyncio.create_task(run.safe_point())
    while not sink.events:
        await asyncio.sleep(0.01)
    assert not waiting.done()
    control.set_desired(then)
    await asyncio.wait({waiting})
    assert type(waiting.exception()) is (RunStopped if then == "stop" else type(None))
    assert [name for name, _ in sink.events] == ["RunPaused", "RunResumed"][: 1 if then == "stop" else 2]


@pytest.mark.parametrize("then", ["run", "stop"])
async def test_a_pause_blocks_work_in_another_thread(then: Any) -> None:
    sink, control = MemorySink(), Control()
    run = context(sink, control)
    assert not run.ends_after_pause()
    control.set_desired("pause")
    waiting = asyncio.create_task(asyncio.to_thread(run.ends_after_pause))
    while not sink.events:
        await asyncio.sleep(0.01)
    assert not waiting.done()
    control.set_desired(then)
    assert await waiting is (then == "stop")
    assert [name for name, _ in sink.events] == ["RunPaused", "RunResumed"][: 1 if then == "stop" else 2]


@pytest.mark.parametrize("how", ["stop", "fence"])
async def test_interruptible_work_is_cancelled_and_cleans_up(how: str) -> None:
    control = Control()
    cleaned = asyncio.Event()
    started = asyncio.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.05)
            cleaned.set()

    running = asyncio.create_task(context(MemorySink(), control).interruptible(work()))
    await started.wait()
    control.stop("a person stopped it") if how == "stop" else control.fence("attempt 2 exists")
    with pytest.raises(RunStopped if how == "stop" else FencedError):
        await running
    assert cleaned.is_set()


async def test_interruptible_work_returns_its_result_or_raises_its_error() -> None:
    run = context(MemorySink(), Control())

    async def answer(fail: bool) -> int:
        if fail:
            raise ValueError("no")
        return 42

    assert await run.interruptible(answer(False)) == 42
    with pytest.raises(ValueError, match="no"):
        await run.interruptible(answer(True))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU samples")
@pytest.mark.parametrize(("limit", "threads"), [(policies._ONE_THREAD, 1), (0, 2)])
def test_a_small_model_is_sampled_by_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, threads: int
) -> None:
    monkeypatch.setattr(policies, "_ONE_THREAD", limit)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        policies.open_policy(
            TransformerPolicyConfig(checkpoint="fresh:tiny"), AgentConfig(max_context=1024), tmp_path
        )
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
