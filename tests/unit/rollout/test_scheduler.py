"""The scheduler: budgets, order, retries, cancellation, isolation of rollouts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from engine.agent.prompts import load_prompt
from engine.agent.replay import FinishedTurn
from engine.config.rollout import RolloutConfig
from engine.config.sandbox import SandboxConfig
from engine.errors import FencedError, ModelError, SandboxError
from engine.inference.base import ChatRequest, ChatResponse, GenerationContext, Policy
from engine.inference.scripted.policies import NoopPolicy, OraclePolicy
from engine.rollout import GroupRequest, RolloutScheduler, SweEnvironments
from engine.sandbox.base import ExecResult, SandboxSpec
from engine.sandbox.pool.pool import SandboxPool
from engine.types import Grade, RolloutKey, RolloutPhase, TaskRow, TerminationReason, Verdict
from tests.builders.rollout_builders import (
    GOLD,
    SOURCE,
    SUBMIT,
    ChatScript,
    PatchGrader,
    Recorder,
    TextPolicy,
    in_bytes,
    make_key,
    make_row,
    quick_agent,
    respond,
    swe_scheduler,
    until_idle,
)
from tests.fakes.memory_sandbox import MemoryBackend, start_fault

FILES = {"/testbed/pkg/m.py": SOURCE.encode()}


def scheduler(backend: MemoryBackend, policy: Policy, **changes: Any) -> RolloutScheduler:
    return swe_scheduler(backend, policy, **{"sandbox": SandboxConfig(start_retries=1), **changes})


def request(task_id: str = "a" * 16, *, size: int = 2, iteration: int = 0) -> GroupRequest:
    return GroupRequest(row=make_row(task_id), iteration=iteration, phase="train", size=size)


async def test_oracle_solves_the_task_and_noop_does_not() -> None:
    recorder, grader = Recorder(), PatchGrader()
    backend = MemoryBackend(FILES)
    (group,) = await scheduler(backend, in_bytes(OraclePolicy()), observer=recorder, grader=grader).collect(
        [request()]
    )
    assert [t.reward for t in group.trajectories] == [1.0, 1.0]
    assert [t.key for t in group.trajectories] == [make_key(index=0), make_key(index=1)]
    assert grader.graded[0].split("@@")[-1] == GOLD.split("@@")[-1]
    events = ["started", "step 0", "step 1", "step 2", "finished"]
    assert recorder.of(make_key(index=0)) == recorder.of(make_key(index=1)) == events
    turns = [RolloutPhase.TOOLS, RolloutPhase.MODEL] * 3 + [RolloutPhase.TOOLS]
    phases = [RolloutPhase.PLACE, RolloutPhase.SANDBOX, *turns, RolloutPhase.GRADING, None]
    assert [phase for key, phase in recorder.phases if key == make_key(index=0)] == phases
    assert len(recorder.finished[0].tokens)
    prompt = load_prompt("compact_v1", "xml")
    assert [(t.prompt, t.prompt_hash) for t in recorder.finished] == [
        (prompt.name, prompt.content_hash)
    ] * len(recorder.finished)
    (group,) = await scheduler(backend, NoopPolicy()).collect([request()])
    assert [(t.reward, t.patch) for t in group.trajectories] == [(0.0, ""), (0.0, "")]
    assert backend.live == 0
    assert {s.spec.run_id for s in backend.started} == {"r1"}


class Waiting(ChatScript):
    """Policy that answers after ``may_act`` is set."""

    def __init__(self, texts: Sequence[str]) -> None:
        super().__init__(texts)
        self.asked, self.may_act = asyncio.Event(), asyncio.Event()

    async def respond(self, request: ChatRequest) -> ChatResponse:
        self.asked.set()
        await self.may_act.wait()
        return await super().respond(request)


async def test_acting_and_grading_rollouts_are_counted_separately() -> None:
    may_grade = asyncio.Event()

    class Blocked(PatchGrader):
        async def grade(self, row: TaskRow, patch: str, *, evaluation: bool = False) -> Grade:
            await may_grade.wait()
            return await super().grade(row, patch)

    policy = Waiting([SUBMIT])
    rollout = RolloutConfig(max_concurrent=2)
    recorder = Recorder()
    tested = scheduler(MemoryBackend(FILES), policy, grader=Blocked(), rollout=rollout, observer=recorder)
    collecting = asyncio.create_task(tested.collect([request(size=8)]))

    async def reach(sampling: int, grading: int) -> None:
        async with asyncio.timeout(240):
            while phases() != {RolloutPhase.MODEL: sampling, RolloutPhase.GRADING: grading}:
                await asyncio.sleep(0.01)

    def phases() -> dict[RolloutPhase, int]:
        now = list(dict(recorder.phases).values())
        return {phase: now.count(phase) for phase in (RolloutPhase.MODEL, RolloutPhase.GRADING)}

    await reach(2, 0)
    policy.may_act.set()
    await reach(0, 4)
    may_grade.set()
    await collecting
    assert set(dict(recorder.phases).values()) == {None}


async def test_waiting_for_room_follows_every_earlier_request() -> None:
    policy = Waiting([SUBMIT])
    tested = scheduler(MemoryBackend(FILES), policy, rollout=RolloutConfig(max_concurrent=2))
    rollouts = [asyncio.create_task(tested.roll_out(rollout)) for rollout in request(size=3).rollouts()]
    await policy.asked.wait()
    room = asyncio.create_task(tested.wait_for_room())
    await until_idle()
    assert not room.done(), "the third request waits too"
    policy.may_act.set()
    await room
    assert sum(rollout.done() for rollout in rollouts) >= 1
    await asyncio.gather(*rollouts)


async def test_every_termination_but_infrastructure_failures_is_graded() -> None:
    look = respond("file_editor", command="view", path="pkg/m.py")
    (group,) = await scheduler(MemoryBackend(FILES), TextPolicy([look])).collect([request(size=1)])
    trajectory = group.trajectories[0]
    assert trajectory.termination is TerminationReason.MAX_STEPS
    assert trajectory.reward == 0.0

    def broken(_context: GenerationContext) -> str:
        raise ModelError("no weights")

    grader = PatchGrader()
    (group,) = await scheduler(MemoryBackend(FILES), TextPolicy(broken), grader=grader).collect([request()])
    assert {t.termination for t in group.trajectories} == {TerminationReason.MODEL_ERROR}
    assert [t.reward for t in group.trajectories] == [None, None]
    assert grader.graded == []


async def test_groups_are_returned_in_order_within_budgets() -> None:
    backend = MemoryBackend(FILES)
    names = [f"{n:016x}" for n in range(6)]
    recorder = Recorder()
    groups = await scheduler(
        backend,
        OraclePolicy(),
        sandbox=SandboxConfig(max_live=3, max_starting=2),
        rollout=RolloutConfig(max_concurrent=5),
        observer=recorder,
    ).collect([request(name, size=3) for name in names])
    assert [group.task.id for group in groups] == names
    assert [[t.key.index for t in group.trajectories] for group in groups] == [[0, 1, 2]] * 6
    assert (backend.most_live, backend.most_starting) == (3, 2)
    started = [key.task_id for event, key in recorder.told if event == "started"]
    assert started[:3] == names[:1] * 3
    backend = MemoryBackend(FILES)
    await scheduler(backend, OraclePolicy(), rollout=RolloutConfig(max_concurrent=2)).collect(
        [request(size=6)]
    )
    assert backend.most_live == 2, "rollouts are limited without a limit of sandboxes"


async def test_exhausted_retries_exclude_only_their_own_rollout() -> None:
    recorder = Recorder()
    backend = MemoryBackend(FILES, faults=[start_fault("a"), start_fault("b")])
    sandbox = SandboxConfig(start_retries=1, max_starting=1)
    rollout = RolloutConfig(max_concurrent=1)
    (group,) = await scheduler(
        backend, OraclePolicy(), sandbox=sandbox, rollout=rollout, observer=recorder
    ).collect([request(size=2)])
    lost, solved = group.trajectories
    assert (lost.termination, lost.grade, lost.attempts) == (TerminationReason.ENV_ERROR, None, 2)
    phases = [RolloutPhase.PLACE, RolloutPhase.SANDBOX, RolloutPhase.SANDBOX, None]
    assert [phase for key, phase in recorder.phases if key == lost.key] == phases
    assert lost.error == "SandboxError: b"
    assert solved.reward == 1.0
    assert recorder.of(lost.key) == ["started", "finished"]
    assert backend.live == 0


async def test_an_unexpected_exception_affects_only_its_rollout() -> None:
    def buggy(context: GenerationContext) -> str:
        if context.key.index == 0:
            raise ZeroDivisionError("bug")
        return respond("submit")

    (group,) = await scheduler(MemoryBackend(FILES), TextPolicy(buggy)).collect([request(size=3)])
    assert group.trajectories[0].error == "ZeroDivisionError: bug"
    assert [t.termination for t in group.trajectories] == [TerminationReason.ENV_ERROR] + [
        TerminationReason.SUBMITTED
    ] * 2


async def test_a_failing_grader_gives_an_infrastructure_verdict() -> None:
    class Broken(PatchGrader):
        async def grade(self, row: Any, patch: str, *, evaluation: bool = False) -> Any:
            raise SandboxError("no room")

    (group,) = await scheduler(MemoryBackend(FILES), NoopPolicy(), grader=Broken()).collect([request(size=1)])
    grade = group.trajectories[0].grade
    assert grade is not None
    assert (grade.verdict, grade.reward) == (Verdict.INFRA_ERROR, None)


async def test_cancellation_closes_sandboxes_and_reports_started_rollouts() -> None:
    commands, both = 0, asyncio.Event()

    async def hanging(_command: str) -> ExecResult:
        nonlocal commands
        commands += 1
        if commands == 2:
            both.set()
        await asyncio.sleep(3600)
        raise AssertionError

    recorder, backend = Recorder(), MemoryBackend(FILES, command=hanging)
    look = respond("file_editor", command="view", path="pkg/m.py")
    policy = TextPolicy([look, respond("execute_bash", cmd="true")])
    task = asyncio.create_task(
        scheduler(backend, policy, observer=recorder, rollout=RolloutConfig(max_concurrent=2)).collect(
            [request(size=4)]
        )
    )
    await both.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert backend.live == 0
    assert {t.termination for t in recorder.finished} == {TerminationReason.CANCELLED}
    assert sorted(t.key.index for t in recorder.finished) == [0, 1]
    assert [len(t.steps) for t in recorder.finished] == [1, 1]
    assert all(t.reward is None for t in recorder.finished)


async def test_errors_of_an_observer_stop_the_collection() -> None:
    class Fenced(Recorder):
        def step_finished(self, key: RolloutKey, turn: FinishedTurn) -> None:
            raise FencedError("a newer attempt exists")

    backend = MemoryBackend(FILES)
    with pytest.raises(FencedError, match="newer attempt"):
        await scheduler(backend, OraclePolicy(), observer=Fenced()).collect([request(size=3)])
    assert backend.live == 0


class SeedPolicy(NoopPolicy):
    """Policy that records the seed of every request."""

    def __init__(self) -> None:
        super().__init__()
        self.seeds: dict[RolloutKey, int] = {}

    async def respond(self, request: ChatRequest) -> ChatResponse:
        self.seeds[request.context.key] = request.seed
        return await super().respond(request)


async def test_seeds_depend_on_the_request_and_not_on_scheduling() -> None:
    wide, narrow, other = SeedPolicy(), SeedPolicy(), SeedPolicy()
    requests = [request("a" * 16, size=3), request("b" * 16, size=3, iteration=1)]
    await scheduler(MemoryBackend(FILES), wide).collect(requests)
    faulty = MemoryBackend(FILES, faults=[start_fault()])
    await scheduler(faulty, narrow, rollout=RolloutConfig(max_concurrent=1)).collect(requests[::-1])
    await scheduler(MemoryBackend(FILES), other, seed=8).collect(requests)
    assert wide.seeds == narrow.seeds
    assert len(set(wide.seeds.values())) == 6
    assert set(wide.seeds.values()).isdisjoint(other.seeds.values())
    # A pinned value: another seed would silently change every repeated or resumed run.
    assert wide.seeds[make_key()] == 3163327638071693699


async def test_a_shared_budget_counts_every_user() -> None:
    inner = MemoryBackend(FILES)
    shared = SandboxPool(inner, SandboxConfig(max_live=1, max_starting=1))

    class OpeningGrader(PatchGrader):
        async def grade(self, row: Any, patch: str, *, evaluation: bool = False) -> Any:
            async with shared.open(SandboxSpec(image="local:pkg")):
                await asyncio.sleep(0)
            return await super().grade(row, patch)

    built = swe_scheduler(shared, OraclePolicy(), grader=OpeningGrader())
    (group,) = await built.collect([request(size=4)])
    assert [t.reward for t in group.trajectories] == [1.0] * 4
    assert (inner.most_live, len(inner.started)) == (1, 8)


async def test_sandboxes_of_the_next_groups_are_prepared_by_image() -> None:
    class Preparing(MemoryBackend):
        asked: list[Mapping[str, int]] = []

        async def prepare(self, images: Mapping[str, int]) -> None:
            self.asked.append(images)

    sandbox = SandboxConfig(max_live=20)
    environments = SweEnvironments(
        pool=SandboxPool(Preparing(), sandbox), grader=PatchGrader(), agent=quick_agent(), sandbox=sandbox,
        run_id="r1",
    )  # fmt: skip
    rows = [make_row("a" * 16), make_row("b" * 16), make_row("c" * 16, image="local:other")]
    await environments.prepare(rows, group_size=8)
    assert Preparing.asked == [{"local:pkg": 16, "local:other": 4}], "never more than may live"
