"""Rollouts that begin anew when the weights change, and single requests under the scheduler's budgets."""

from __future__ import annotations

import asyncio

from engine.config.rollout import RolloutConfig
from engine.inference.base import ChatPolicy, ChatRequest, ChatResponse
from engine.rollout import GroupRequest
from tests.builders.rollout_builders import (
    SOURCE,
    SUBMIT,
    PatchGrader,
    Recorder,
    make_key,
    make_row,
    respond,
    swe_scheduler,
)
from tests.fakes.memory_sandbox import MemoryBackend

FILES = {"/testbed/pkg/m.py": SOURCE.encode()}
LOOK = respond("file_editor", command="view", path="pkg/m.py")


class Slow(ChatPolicy):
    """Looks, then submits once it may."""

    name = "slow"
    version = 0
    max_context = None

    def __init__(self) -> None:
        self.may_submit = asyncio.Event()
        self.asked = asyncio.Event()
        self.versions: list[int] = []

    async def respond(self, request: ChatRequest) -> ChatResponse:
        self.versions.append(self.version)
        if not request.context.steps:
            return ChatResponse(content=LOOK)
        self.asked.set()
        await self.may_submit.wait()
        return ChatResponse(content=SUBMIT)

    async def close(self) -> None:
        """Do nothing."""


async def turns() -> None:
    """Let everything that can go on do so."""
    for _ in range(100):
        await asyncio.sleep(0)


async def test_an_interrupted_rollout_begins_anew_after_the_body() -> None:
    recorder, grader, policy, backend = Recorder(), PatchGrader(), Slow(), MemoryBackend(FILES)
    scheduler = swe_scheduler(
        backend, policy, observer=recorder, grader=grader, rollout=RolloutConfig(max_concurrent=2)
    )
    (request,) = GroupRequest(row=make_row(), iteration=0, phase="train", size=1).rollouts()
    rollout = asyncio.create_task(scheduler.roll_out(request))
    await policy.asked.wait()
    with scheduler.begun_anew():
        policy.may_submit.set()
        await turns()
        assert policy.versions == [0, 0], "nothing is sampled while the weights change"
        policy.version = 1
    trajectory = await rollout
    assert policy.versions == [0, 0, 1, 1]
    assert trajectory.attempts == 1, "it is no failure"
    assert len(trajectory.steps) == 2
    assert recorder.of(make_key(index=0)) == ["started", "step 0", "started", "step 0", "step 1", "finished"]
    assert not backend.live


async def test_room_comes_after_every_earlier_request() -> None:
    policy = Slow()
    scheduler = swe_scheduler(MemoryBackend(FILES), policy, rollout=RolloutConfig(max_concurrent=2))
    requests = list(GroupRequest(row=make_row(), iteration=0, phase="train", size=3).rollouts())
    rollouts = [asyncio.create_task(scheduler.roll_out(one)) for one in requests]
    await policy.asked.wait()
    room = asyncio.create_task(scheduler.wait_for_room())
    await turns()
    assert not room.done(), "the third request waits too"
    policy.may_submit.set()
    await room
    assert sum(one.done() for one in rollouts) >= 1
    await asyncio.gather(*rollouts)
