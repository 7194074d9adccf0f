"""Rollouts in workers: equal to those of one process, also after the loss of a worker."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest

from engine.config.rollout import RolloutConfig
from engine.config.sandbox import SandboxConfig
from engine.errors import EngineError, ImageError, ModelError, WorkersLostError
from engine.inference.base import ChatRequest, ChatResponse, Policy
from engine.processes.guarded import GuardedProcess
from engine.processes.launchers import LocalProcesses
from engine.rollout import GroupRequest, RolloutScheduler
from engine.rollout.processes import worker
from engine.rollout.processes import workers as supervision
from engine.rollout.processes.messages import portable
from engine.rollout.processes.worker import EXIT_MEMORY
from engine.rollout.processes.workers import RolloutWorkers
from engine.sandbox.pool.pool import SandboxPool
from engine.types import Group, TerminationReason, Timings, Trajectory
from tests.builders.rollout_builders import (
    SOURCE,
    SUBMIT,
    PatchGrader,
    Recorder,
    in_bytes,
    make_row,
    respond,
    swe_scheduler,
)
from tests.builders.worker_builders import ThreadWorkers, TurnsPolicy, opened_workers
from tests.fakes.memory_sandbox import MemoryBackend

LOOK = respond("file_editor", command="view", path="pkg/m.py")
FIX = respond("file_editor", command="str_replace", path="pkg/m.py", old_str="a - 1\n", new_str="a + 1\n")
TURNS = (LOOK, FIX, SUBMIT)
ROLLOUT = RolloutConfig(max_concurrent=8)
GROUPS = [GroupRequest(row=make_row(name * 16), iteration=0, phase="train", size=3) for name in "ab"]


def shared_pool() -> SandboxPool:
    """Return the pool of the run, in which no sandbox is opened."""
    return SandboxPool(MemoryBackend(), SandboxConfig())


def scheduler_over(
    workers: RolloutWorkers, pool: SandboxPool, policy: Policy, **changes: Any
) -> RolloutScheduler:
    return swe_scheduler(pool, policy, workers=workers, rollout=ROLLOUT, **changes)


def results(groups: Sequence[Group]) -> list[Trajectory]:
    """Return the trajectories without their times."""
    return [
        replace(
            trajectory,
            timings=Timings(),
            steps=tuple(replace(step, model_seconds=0.0, tool_seconds=0.0) for step in trajectory.steps),
        )
        for group in groups
        for trajectory in group.trajectories
    ]


class Gated(TurnsPolicy):
    """Policy that answers second turns after ``may_go_on`` is set."""

    def __init__(self, texts: Sequence[str]) -> None:
        super().__init__(texts)
        self.may_go_on = asyncio.Event()
        self.asked = 0
        self.held = 0

    async def respond(self, request: ChatRequest) -> ChatResponse:
        self.asked += 1
        response = await super().respond(request)
        if self.turns[request.context.key] == 2:
            self.held += 1
            await self.may_go_on.wait()
        return response


async def until(condition: Any) -> None:
    async with asyncio.timeout(240):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", ["tokens", "messages"])
async def test_rollouts_in_workers_equal_those_of_one_process(kind: str) -> None:
    def policy() -> tuple[TurnsPolicy, Policy]:
        turns = TurnsPolicy(TURNS)
        return turns, in_bytes(turns) if kind == "tokens" else turns

    backend = MemoryBackend({"/testbed/pkg/m.py": SOURCE.encode()})
    expected = results(await swe_scheduler(backend, policy()[1]).collect(GROUPS))
    pool, grader, recorder = shared_pool(), PatchGrader(), Recorder()
    turns, proxied = policy()
    async with opened_workers(pool, grader) as workers:
        scheduler = scheduler_over(workers, pool, proxied, observer=recorder)
        groups = await scheduler.collect(GROUPS)
        assert results(groups) == expected
        assert [trajectory.reward for trajectory in results(groups)] == [1.0] * 6
        assert all(trajectory.timings.total > 0 for group in groups for trajectory in group.trajectories)
        assert len(grader.graded) == 6, "graded in this process"
        assert not turns.turns, "the policy was told of every end"
        assert (pool.live, pool.starting, pool.waiting) == (0, 0, 0)
    for trajectory in recorder.finished:
        events = recorder.of(trajectory.key)
        assert events == ["started", "step 0", "step 1", "step 2", "finished"]
        assert [phase for key, phase in recorder.phases if key == trajectory.key][-1] is None


async def test_rollouts_of_a_lost_worker_restart_and_are_reported_once() -> None:
    pool, recorder, launcher = shared_pool(), Recorder(), ThreadWorkers()
    policy = Gated(TURNS)
    async with opened_workers(pool, PatchGrader(), launcher=launcher) as workers:
        scheduler = scheduler_over(workers, pool, policy, observer=recorder)
        collecting = asyncio.create_task(scheduler.collect(GROUPS))
        await until(lambda: policy.held == 6)
        launcher.started[0].sever()
        await until(lambda: policy.held == 9)
        policy.may_go_on.set()
        groups = await collecting
        await until(lambda: len(launcher.started) == 3)
        assert (pool.live, pool.starting, pool.waiting) == (0, 0, 0)
    backend = MemoryBackend({"/testbed/pkg/m.py": SOURCE.encode()})
    expected = results(await swe_scheduler(backend, TurnsPolicy(TURNS)).collect(GROUPS))
    assert results(groups) == expected
    assert sorted(t.key.index for t in recorder.finished) == [0, 0, 1, 1, 2, 2]
    starts = [recorder.of(trajectory.key).count("started") for trajectory in recorder.finished]
    assert sorted(starts) == [1, 1, 1, 2, 2, 2], "three were in the lost worker"


async def test_cancelled_rollouts_close_their_sandboxes_and_are_reported() -> None:
    pool, recorder, policy = shared_pool(), Recorder(), Gated(TURNS)
    async with opened_workers(pool, PatchGrader()) as workers:
        scheduler = scheduler_over(workers, pool, policy, observer=recorder)
        collecting = asyncio.create_task(scheduler.collect(GROUPS))
        await until(lambda: policy.held == 6)
        collecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await collecting
        assert not pool.live
        assert not policy.turns
    assert [t.termination for t in recorder.finished] == [TerminationReason.CANCELLED] * 6
    assert all(len(t.steps) == 1 for t in recorder.finished)


async def test_rollouts_restart_when_weights_change(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = threading.Event()

    class Gate(asyncio.Event):
        async def wait(self) -> Literal[True]:
            if not self.is_set():
                waits.set()
            return await super().wait()

    def gate() -> asyncio.Event:
        opened = Gate()
        opened.set()
        return opened

    monkeypatch.setattr(worker, "open_gate", gate)
    pool, recorder, policy = shared_pool(), Recorder(), Gated(TURNS)
    async with opened_workers(pool, PatchGrader()) as workers:
        scheduler = scheduler_over(workers, pool, policy, observer=recorder)
        (request,) = GroupRequest(row=make_row(), iteration=0, phase="train", size=1).rollouts()
        rollout = asyncio.create_task(scheduler.roll_out(request))
        await until(lambda: policy.held == 1)
        asked = policy.asked
        with scheduler.restarted():
            policy.may_go_on.set()
            await until(lambda: waits.is_set() or policy.asked > asked)
            assert policy.asked == asked, "nothing is sampled while the weights change"
        assert (await rollout).reward == 1.0
    assert recorder.of(request.key).count("started") == 2


async def test_recorded_turns_are_replayed_in_workers() -> None:
    pool, first, second = shared_pool(), Recorder(), Recorder()
    (request,) = GroupRequest(row=make_row(), iteration=0, phase="train", size=1).rollouts()
    async with opened_workers(pool, PatchGrader()) as workers:
        await scheduler_over(workers, pool, TurnsPolicy(TURNS), observer=first).roll_out(request)
        recorded = replace(request, recorded=lambda: [turn for _, turn in first.turns[:2]])
        policy = TurnsPolicy([SUBMIT])
        trajectory = await scheduler_over(workers, pool, policy, observer=second).roll_out(recorded)
    assert trajectory.replay is not None
    assert trajectory.reward == 1.0
    assert [turn.is_replayed for _, turn in second.turns] == [True, True, False]


class EndedProcess(GuardedProcess):
    def start(self, command: Sequence[str], environment: Mapping[str, str], **_: Any) -> None:  # noqa: ARG002
        super().start((sys.executable, "-c", "raise SystemExit(7)"), environment)


class EndedProcesses(LocalProcesses):
    """Launcher of workers that end at once."""

    def create(self, number: int) -> GuardedProcess:  # noqa: ARG002
        return EndedProcess()


async def test_workers_that_do_not_start_end_the_run_with_the_reason() -> None:
    with pytest.raises(WorkersLostError, match="rollout worker . did not start: it ended with code 7"):
        async with opened_workers(shared_pool(), PatchGrader(), launcher=EndedProcesses()):
            pass


async def test_repeatedly_silent_workers_end_the_run_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "BEAT_S", 999.0)
    monkeypatch.setattr(supervision, "SILENT_S", 0.2)
    launcher = ThreadWorkers()

    async def keep_choosing() -> None:
        async with opened_workers(shared_pool(), PatchGrader(), launcher=launcher) as workers:
            while True:
                await workers.choose()
                await asyncio.sleep(0.05)

    with pytest.raises(WorkersLostError, match=r"lost 6 times within 10 minutes; .* gave no sign of life"):
        await keep_choosing()
    assert len(launcher.started) >= 6


async def test_messages_that_cannot_be_sent_lose_the_worker_and_not_the_rollouts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    losses: list[str] = []
    pool, policy, recorder = shared_pool(), TurnsPolicy(TURNS), Recorder()
    async with opened_workers(pool, PatchGrader(), on_loss=losses.append) as workers:
        scheduler = swe_scheduler(pool, policy, workers=workers, observer=recorder)
        (await workers.choose()).send(lambda: None)
        groups = await scheduler.collect(GROUPS)
    assert [trajectory.reward for group in groups for trajectory in group.trajectories] == [1.0] * 6
    assert len(losses) == 1


async def test_a_worker_ends_itself_beyond_its_memory_limit() -> None:
    """The worker has a process of its own, which it ends."""
    losses: list[str] = []
    async with opened_workers(
        shared_pool(), PatchGrader(), count=1, launcher=LocalProcesses(), memory_mb=1, on_loss=losses.append
    ):
        await until(lambda: losses)
    assert f"ended with code {EXIT_MEMORY}" in losses[0]


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ImageError("no such image"), ImageError, "no such image"),
        (EngineError("cut off", kind="lost"), ModelError, "cut off"),
        (KeyError("x"), RuntimeError, "KeyError: 'x'"),
    ],
)
def test_errors_are_sent_as_the_nearest_class_built_from_a_message(
    error: Exception, kind: type[Exception], text: str
) -> None:
    sent = portable(error)
    assert type(sent) is kind
    assert str(sent) == text
