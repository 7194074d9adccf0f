"""The stream of rollouts: requests on demand, freed memory, errors, repetitions."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace

import pytest

from engine.agent.loop import AgentLoop
from engine.config.rollout import RolloutConfig
from engine.config.sandbox import SandboxConfig
from engine.errors import FencedError, SandboxError
from engine.inference.base import ChatRequest, ChatResponse
from engine.inference.scripted.policies import OraclePolicy
from engine.rollout import GroupRequest, RolloutRequest
from engine.sandbox.base import ExecResult
from engine.tools.file_editor import FileEditor
from engine.types import TerminationReason, Trajectory
from tests.builders.rollout_builders import (
    SOURCE,
    SUBMIT,
    ChatScript,
    PatchGrader,
    Recorder,
    TextPolicy,
    make_row,
    respond,
    swe_scheduler,
)
from tests.fakes.memory_sandbox import MemoryBackend

FILES = {"/testbed/pkg/m.py": SOURCE.encode()}
LOOK = respond("file_editor", command="view", path="pkg/m.py")


def rollouts(count: int, taken: list[int] | None = None) -> Iterator[RolloutRequest]:
    """Yield requests; append the index of each to ``taken``."""
    for request in GroupRequest(row=make_row(), iteration=0, phase="train", size=count).rollouts():
        if taken is not None:
            taken.append(request.key.index)
        yield request


async def test_requests_are_taken_on_demand_and_each_is_finished_once() -> None:
    taken: list[int] = []
    finished: list[int] = []
    ahead = 0

    def note(trajectory: Trajectory) -> None:
        nonlocal ahead
        finished.append(trajectory.key.index)
        ahead = max(ahead, len(taken) - len(finished))

    scheduler = swe_scheduler(MemoryBackend(FILES), OraclePolicy(), rollout=RolloutConfig(max_concurrent=3))
    await scheduler.run(rollouts(50, taken), note)
    assert taken == list(range(50))
    assert sorted(finished) == list(range(50))
    assert ahead <= 2 * 3, "as many in grading as in rollout, and the next request"


async def test_finished_rollouts_are_freed_without_garbage_collection() -> None:
    """Full collections are rare, and a conversation can take a megabyte."""
    scheduler = swe_scheduler(MemoryBackend(FILES), OraclePolicy(), rollout=RolloutConfig(max_concurrent=2))

    def num_living() -> int:
        return sum(type(instance) in (AgentLoop, FileEditor) for instance in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = num_living()
        await scheduler.run(rollouts(20), lambda _trajectory: None)
        assert num_living() <= before
    finally:
        gc.enable()


async def test_errors_of_the_consumer_end_the_stream_and_close_every_sandbox() -> None:
    backend, recorder = MemoryBackend(FILES), Recorder()

    def refuse(_trajectory: Trajectory) -> None:
        raise FencedError("enough")

    taken: list[int] = []
    scheduler = swe_scheduler(
        backend, OraclePolicy(), rollout=RolloutConfig(max_concurrent=2), observer=recorder
    )
    with pytest.raises(FencedError, match="enough"):
        await scheduler.run(rollouts(50, taken), refuse)
    assert backend.live == 0
    assert len(taken) < 50
    ended = {key for event, key in recorder.told if event == "finished"}
    assert {key for event, key in recorder.told if event == "started"} == ended


class Temperatures(ChatScript):
    """Policy that submits at a temperature or above it, and looks at a file below it."""

    def __init__(self, submits_at: float) -> None:
        super().__init__([LOOK])
        self.submits_at = submits_at

    async def respond(self, request: ChatRequest) -> ChatResponse:
        response = await super().respond(request)
        return ChatResponse(content=SUBMIT) if request.sampling.temperature >= self.submits_at else response

    @property
    def temperatures(self) -> list[float]:
        return [request.sampling.temperature for request in self.requests]


async def test_a_rollout_is_repeated_at_other_temperatures_until_it_submits() -> None:
    recorder, policy = Recorder(), Temperatures(0.1)
    scheduler = swe_scheduler(
        MemoryBackend(FILES), policy, observer=recorder, retry_temperatures=(0.0, 0.1, 0.2)
    )
    scheduler._parts = replace(scheduler._parts, sampling=replace(scheduler._parts.sampling, temperature=0.0))
    await scheduler.run(rollouts(1), lambda _: None)
    (trajectory,) = recorder.finished
    assert (trajectory.termination, trajectory.attempts) == (TerminationReason.SUBMITTED, 3)
    assert policy.temperatures == [0.0] * 12 + [0.1]
    assert len({request.seed for request in policy.requests}) == 13, "every attempt samples other tokens"


async def test_the_last_attempt_is_kept_and_infrastructure_failures_are_not_repeated() -> None:
    policy = Temperatures(9.0)
    scheduler = swe_scheduler(MemoryBackend(FILES), policy, retry_temperatures=(0.1, 0.2))
    finished: list[Trajectory] = []
    await scheduler.run(rollouts(1), finished.append)
    assert (finished[0].termination, finished[0].attempts) == (TerminationReason.MAX_STEPS, 3)
    assert policy.temperatures[-1] == 0.2

    async def dead(_command: str) -> ExecResult:
        raise SandboxError("gone")

    scheduler = swe_scheduler(
        MemoryBackend(FILES, command=dead), TextPolicy([respond("execute_bash", cmd="true")]),
        sandbox=SandboxConfig(start_retries=0), retry_temperatures=(0.1, 0.2), grader=PatchGrader(),
    )  # fmt: skip
    finished.clear()
    await scheduler.run(rollouts(1), finished.append)
    assert (finished[0].termination, finished[0].attempts) == (TerminationReason.ENV_ERROR, 1)
