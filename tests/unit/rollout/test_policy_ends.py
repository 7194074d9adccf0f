"""Release of rollouts by their policy after each attempt, and policy errors that end the run."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config.rollout import RolloutConfig
from engine.config.sandbox import SandboxConfig
from engine.errors import SpendLimitError
from engine.inference.base import GenerationContext
from engine.rollout import GroupRequest
from engine.rollout.summary import RolloutSummary
from engine.types import RolloutKey, TerminationReason
from tests.builders.rollout_builders import (
    SOURCE,
    SUBMIT,
    ChatScript,
    PatchGrader,
    Recorder,
    make_key,
    make_row,
    respond,
    swe_scheduler,
)
from tests.fakes.memory_sandbox import MemoryBackend, dying_once, start_fault

FILES = {"/testbed/pkg/m.py": SOURCE.encode()}
RUN = respond("execute_bash", cmd="true")


def request(size: int) -> GroupRequest:
    return GroupRequest(row=make_row(), iteration=0, phase="train", size=size)


async def test_a_rollout_is_released_before_it_is_graded() -> None:
    policy, released = ChatScript([SUBMIT]), []

    class RecordingGrader(PatchGrader):
        async def grade(self, row: Any, patch: str, *, evaluation: bool = False) -> Any:
            released.append(list(policy.released))
            return await super().grade(row, patch)

    await swe_scheduler(MemoryBackend(FILES), policy, grader=RecordingGrader()).collect([request(1)])
    assert released == [[make_key()]]
    assert policy.released == [make_key()]


async def test_every_attempt_that_used_the_policy_is_released() -> None:
    policy, recorder = ChatScript([RUN, SUBMIT]), Recorder()
    backend = MemoryBackend(FILES, command=dying_once(), faults=[start_fault()])
    sandbox = SandboxConfig(start_retries=2)
    scheduler = swe_scheduler(backend, policy, sandbox=sandbox, observer=recorder)
    (group,) = await scheduler.collect([request(1)])
    assert group.trajectories[0].attempts == 3
    assert recorder.of(make_key()) == ["started", "started", "step 0", "step 1", "finished"]
    assert policy.released == [make_key()] * 2
    assert [len(sent.messages) for sent in policy.requests] == [1, 1, 3], "a new attempt begins anew"


async def test_the_cost_of_a_rollout_includes_its_lost_attempts() -> None:
    class Priced(ChatScript):
        def spent_on(self, key: RolloutKey) -> float | None:
            requests = [sent for sent in self.requests if sent.context.key == key]
            return 0.25 * len(requests) - 0.25 * self.seen

        def release(self, key: RolloutKey) -> None:
            super().release(key)
            self.seen = len(self.requests)

        seen = 0

    policy = Priced([RUN, SUBMIT])
    sandbox = SandboxConfig(start_retries=2)
    backend = MemoryBackend(FILES, command=dying_once())
    (group,) = await swe_scheduler(backend, policy, sandbox=sandbox).collect([request(1)])
    (trajectory,) = group.trajectories
    assert (trajectory.attempts, len(trajectory.steps)) == (2, 2)
    assert trajectory.cost == 0.75
    assert RolloutSummary.of(trajectory).cost == 0.75


async def test_permanent_policy_errors_end_the_collection() -> None:
    def spent(context: GenerationContext) -> str:
        if context.steps:
            raise SpendLimitError("the spend limit of 5 US dollars is reached")
        return RUN

    recorder, backend, policy = Recorder(), MemoryBackend(FILES), ChatScript(spent)
    scheduler = swe_scheduler(
        backend, policy, observer=recorder, rollout=RolloutConfig(max_concurrent=2)
    )  # the third and fourth wait
    with pytest.raises(SpendLimitError, match="5 US dollars"):
        await scheduler.collect([request(4)])
    assert backend.live == 0
    assert {trajectory.termination for trajectory in recorder.finished} == {TerminationReason.CANCELLED}
    assert recorder.finished[0].error == "the spend limit of 5 US dollars is reached"
    assert len(recorder.finished[0].steps) == 1
    assert [trajectory.grade for trajectory in recorder.finished] == [None] * len(recorder.finished)
    assert set(policy.released) == {trajectory.key for trajectory in recorder.finished}
