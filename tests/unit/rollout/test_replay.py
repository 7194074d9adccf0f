"""Rollouts that resume from the recorded steps of a killed attempt, in a fresh sandbox."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from engine.agent.replay import FinishedTurn
from engine.config.rollout import AgentConfig, RolloutConfig
from engine.errors import SandboxDiedError
from engine.inference.base import ChatRequest, ChatResponse, Generation, GenerationRequest, Usage
from engine.rollout import RolloutRequest
from engine.rollout.recorded import sampled_response
from engine.sandbox.base import ExecResult
from engine.tools.parser import NativeCall
from engine.types import ReplayDifference, RolloutKey, TerminationReason, Trajectory
from tests.builders.rollout_builders import (
    SOURCE,
    SUBMIT,
    ChatScript,
    Recorder,
    TextPolicy,
    make_key,
    make_row,
    quick_agent,
    respond,
    swe_scheduler,
    until_idle,
)
from tests.fakes.memory_sandbox import Command, MemoryBackend, printed

FILES = {"/testbed/pkg/m.py": SOURCE.encode()}
FIX = respond("file_editor", command="str_replace", path="pkg/m.py", old_str="a - 1", new_str="a + 1")
TEST = respond("execute_bash", cmd="pytest")
SCRIPT = (TEST, FIX, TEST, SUBMIT)
VERSION = 3
"""Policy version of the killed attempt."""


class Sampler(TextPolicy):
    """Policy that writes a script with log-probabilities of the step's seed; records its samples."""

    def __init__(self, texts: Sequence[str] = SCRIPT, *, version: int = VERSION) -> None:
        super().__init__(texts)
        self.version = version
        self.sampled: list[int] = []

    async def generate(self, request: GenerationRequest) -> Generation:
        self.sampled.append(len(request.context.steps))
        generation = await super().generate(request)
        rng = random.Random(request.seed)
        return replace(generation, logprobs=tuple(-float(rng.randrange(9)) / 8 for _ in generation.ids))


class Paid(ChatScript):
    """Policy that reports the cost of its responses."""

    spent = 0.0

    async def respond(self, request: ChatRequest) -> ChatResponse:
        response = await super().respond(request)
        self.spent += response.usage.cost or 0.0
        return response

    def spent_on(self, key: RolloutKey) -> float:
        return self.spent


def prints(*texts: str) -> Command:
    """Return a shell whose commands print the texts in order, then repeat the last."""
    remaining = list(texts)

    async def command(_command: str) -> ExecResult:
        return printed(remaining.pop(0) if len(remaining) > 1 else remaining[0])

    return command


async def roll(
    policy: Any,
    *,
    recorded: Sequence[FinishedTurn] | None = None,
    command: Command | None = None,
    agent: AgentConfig | None = None,
) -> tuple[Trajectory, list[FinishedTurn]]:
    """Run one rollout that begins with the recorded turns."""
    recorder = Recorder()
    backend = MemoryBackend(FILES, command=command or prints("1 failed", "1 passed"))
    scheduler = swe_scheduler(backend, policy, observer=recorder, agent=agent)
    read: Callable[[], Sequence[FinishedTurn]] | None = None if recorded is None else lambda: recorded
    trajectory = await scheduler.roll_out(RolloutRequest(key=make_key(), row=make_row(), recorded=read))
    assert not backend.live
    return trajectory, [turn for _, turn in recorder.turns]


async def test_replays_with_equal_observations_reproduce_the_killed_rollout() -> None:
    """Recorded steps are never sampled again, and every token is equal bit for bit."""
    whole, turns = await roll(Sampler())
    assert whole.reward == 1.0
    assert len(turns) == len(SCRIPT)
    for count in range(1, len(SCRIPT) + 1):
        policy = Sampler(version=VERSION + 1)
        trajectory, again = await roll(policy, recorded=turns[:count])
        assert policy.sampled == list(range(count, len(SCRIPT)))
        assert [turn.is_replayed for turn in again] == [index < count for index in range(len(SCRIPT))]
        assert trajectory.replay is not None
        assert (trajectory.replay.recorded, trajectory.replay.replayed) == (count, count)
        assert trajectory.replay.differences == ()
        assert (trajectory.patch, trajectory.grade) == (whole.patch, whole.grade)
        for name in ("ids", "mask", "logprobs", "steps"):
            assert (getattr(trajectory.tokens, name) == getattr(whole.tokens, name)).all()
        sampled = trajectory.tokens.mask
        versions = trajectory.tokens.versions[sampled]
        expected = [VERSION + (step >= count) for step in trajectory.tokens.steps[sampled]]
        assert versions.tolist() == expected, "recorded tokens keep the version that sampled them"
        assert [step.policy_version for step in trajectory.steps] == [
            VERSION + (index >= count) for index in range(len(SCRIPT))
        ]
    assert whole.replay is None


async def test_rollouts_continue_from_their_own_sandbox_after_a_difference() -> None:
    _, turns = await roll(Sampler())
    policy = Sampler()
    trajectory, again = await roll(policy, recorded=turns[:3], command=prints("2 failed", "1 passed"))
    assert policy.sampled == [1, 2, 3], "what was sampled after the difference is not used"
    assert trajectory.steps[0].observation.endswith("2 failed")
    assert [turn.is_replayed for turn in again] == [False] * 4
    replay = trajectory.replay
    assert replay is not None
    assert (replay.recorded, replay.replayed) == (3, 1)
    (difference,) = replay.differences
    assert (difference.step, difference.field, difference.is_minor) == (0, "observation", False)
    assert difference.recorded.endswith("1 failed")
    assert difference.found.endswith("2 failed")
    assert trajectory.reward == 1.0


async def test_times_and_addresses_are_minor_differences_and_keep_the_recorded_text() -> None:
    first = "<f at 0x7f31c0de> 1 failed in 0.12s\n-rw-r--r-- 1 agent 9 Nov 24 11:05 m.py"
    second = "<f at 0x7fa9beef> 1 failed in 1.07s\n-rw-r--r-- 1 agent 9 Nov 25 09:31 m.py"
    whole, turns = await roll(Sampler(), command=prints(first, "1 passed"))
    trajectory, again = await roll(Sampler(), recorded=turns[:2], command=prints(second, "1 passed"))
    assert [turn.is_replayed for turn in again] == [True, True, False, False]
    assert trajectory.tokens == whole.tokens
    assert trajectory.steps[0].observation == turns[0].step.observation
    assert trajectory.replay is not None
    assert [(diff.step, diff.is_minor) for diff in trajectory.replay.differences] == [(0, True)]


async def test_other_numbers_are_major_differences() -> None:
    for recorded, repeated in (("m.py:12:30: error", "m.py:13:31: error"), ("took 3 s", "took 4 s")):
        _, turns = await roll(Sampler(), command=prints(recorded, "1 passed"))
        trajectory, _ = await roll(Sampler(), recorded=turns[:2], command=prints(repeated, "1 passed"))
        assert trajectory.replay is not None
        assert [diff.is_minor for diff in trajectory.replay.differences] == [False]


async def test_recorded_timeouts_must_time_out_again() -> None:
    async def slow(_command: str) -> ExecResult:
        return ExecResult(exit_code=-1, stdout=b"half", stderr=b"", timed_out=True, seconds=90.0)

    _, turns = await roll(Sampler(), command=slow)
    trajectory, again = await roll(Sampler(), recorded=turns[:1], command=slow)
    assert again[0].is_replayed
    assert trajectory.steps[0].exit_code is None
    trajectory, _ = await roll(Sampler(), recorded=turns[:1], command=prints("half"))
    assert trajectory.replay is not None
    assert "exit_code" in {diff.field for diff in trajectory.replay.differences}


async def test_a_sandbox_that_hangs_in_the_replay_is_a_difference_and_a_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, turns = await roll(Sampler())
    monkeypatch.setattr("engine.environments.swe._GRACE_S", 0.0)

    async def hanging(_command: str) -> ExecResult:
        await asyncio.sleep(3600)
        raise AssertionError

    trajectory, _ = await roll(
        Sampler(), recorded=turns[:3], command=hanging, agent=quick_agent(command_timeout_s=0.05)
    )
    assert trajectory.termination is TerminationReason.ENV_TIMEOUT
    assert len(trajectory.steps) == 1
    assert trajectory.replay is not None
    assert (trajectory.replay.replayed, trajectory.replay.differences[0].step) == (1, 0)


async def test_a_sandbox_that_dies_in_the_replay_is_replaced_without_resampling() -> None:
    whole, turns = await roll(Sampler())
    calls = iter(range(9))

    async def dying(_command: str) -> ExecResult:
        number = next(calls)
        if number == 1:
            raise SandboxDiedError("gone")
        return printed("1 failed" if number in (0, 2) else "1 passed")

    policy = Sampler()
    trajectory, again = await roll(policy, recorded=turns[:3], command=dying)
    assert (trajectory.attempts, policy.sampled) == (2, [3])
    assert [turn.step.index for turn in again] == [0, 1, 0, 1, 2, 3]
    assert trajectory.tokens == whole.tokens


async def test_limits_count_the_replayed_steps() -> None:
    _, turns = await roll(Sampler())
    policy = Sampler()
    trajectory, _ = await roll(policy, recorded=turns[:3], agent=quick_agent(max_steps=3))
    assert (trajectory.termination, len(trajectory.steps)) == (TerminationReason.MAX_STEPS, 3)
    long = [replace(turn, step=replace(turn.step, model_seconds=500.0)) for turn in turns]
    trajectory, _ = await roll(policy, recorded=long[:3], agent=quick_agent(rollout_timeout_s=900.0))
    assert (trajectory.termination, len(trajectory.steps)) == (TerminationReason.ROLLOUT_TIMEOUT, 2)
    waited = [replace(turn, waited_seconds=200.0) for turn in long]
    trajectory, _ = await roll(policy, recorded=waited[:3], agent=quick_agent(rollout_timeout_s=850.0))
    assert len(trajectory.steps) == 3, "waits for engines do not count"
    used = len(turns[2].response.ids) if isinstance(turns[2].response, Generation) else 0
    room = turns[2].step.prompt_tokens + used + 20
    trajectory, _ = await roll(policy, recorded=turns[:3], agent=quick_agent(max_context=room))
    assert (trajectory.termination, len(trajectory.steps)) == (TerminationReason.MAX_CONTEXT, 3)
    assert policy.sampled == []


async def test_a_changed_prompt_ends_the_replay() -> None:
    """A newer version of the product may have another prompt before the first response."""
    _, turns = await roll(Sampler())
    prompt = turns[0].step.prompt_tokens
    other = [
        replace(turn, step=replace(turn.step, prompt_tokens=turn.step.prompt_tokens + 1)) for turn in turns
    ]
    policy = Sampler()
    trajectory, again = await roll(policy, recorded=other[:2])
    assert policy.sampled == [0, 1, 2, 3]
    assert not any(turn.is_replayed for turn in again)
    assert trajectory.replay is not None
    assert trajectory.replay.differences == (
        ReplayDifference(step=0, field="prompt_tokens", recorded=str(prompt + 1), found=str(prompt)),
    )


async def test_replayed_messages_are_not_charged_again() -> None:
    call = NativeCall(name="execute_bash", arguments='{"cmd": "pytest"}')
    submit = NativeCall(name="finish", arguments='{"command": "submit"}')
    usage = Usage(prompt_tokens=50, generated_tokens=9, cost=0.5)
    state = {"tool_calls": [{"id": "x", "extra_content": {"google": {"thought_signature": "s"}}}]}
    answers = [
        ChatResponse(content="look", thinking="hm", calls=(sent,), usage=usage, provider_state=state)
        for sent in (call, call, submit)
    ]
    agent = quick_agent(tool_format="native")
    whole, turns = await roll(ChatScript(answers), agent=agent)
    assert whole.termination is TerminationReason.SUBMITTED
    policy = Paid(answers)
    trajectory, _ = await roll(policy, recorded=turns[:2], agent=agent)
    (request,) = policy.requests
    assert [message["role"] for message in request.messages][-4:] == ["assistant", "tool"] * 2
    assert request.messages[-2]["provider_state"] == state
    assert [step.call for step in trajectory.steps] == [step.call for step in whole.steps]
    assert sum(step.cost or 0.0 for step in trajectory.steps) == 1.5
    assert policy.spent == 0.5
    assert trajectory.cost == 1.5
    assert sampled_response(turns[0]).message == {
        "content": "look",
        "thinking": "hm",
        "calls": [{"name": call.name, "arguments": call.arguments, "error": ""}],
    }


async def test_restarted_rollouts_replay_nothing() -> None:
    _, turns = await roll(Sampler())
    reached, may_go_on = asyncio.Event(), asyncio.Event()

    class Waiting(Sampler):
        async def generate(self, request: GenerationRequest) -> Generation:
            reached.set()
            await may_go_on.wait()
            return await super().generate(request)

    policy = Waiting()
    scheduler = swe_scheduler(
        MemoryBackend(FILES, command=prints("1 passed")), policy, rollout=RolloutConfig(max_concurrent=1)
    )
    requests = [
        RolloutRequest(key=make_key(index=index), row=make_row(), recorded=lambda: turns[:2])
        for index in range(4)  # one acts, one waits for its place, the others for memory
    ]
    rollouts = [asyncio.create_task(scheduler.roll_out(request)) for request in requests]
    await reached.wait()
    with scheduler.restarted():
        policy.version += 1
        may_go_on.set()
        await until_idle()
        assert policy.sampled == [], "nothing is sampled while the weights change"
    for trajectory in await asyncio.gather(*rollouts):
        assert trajectory.replay is None
        assert trajectory.attempts == 1, "it is no failure"
        assert set(trajectory.tokens.versions[trajectory.tokens.mask].tolist()) == {VERSION + 1}
    assert sorted(policy.sampled) == sorted([0, 1, 2, 3] * 4)
