"""Counts of rollouts in flight, of finished ones, and the rate of sampled tokens."""

from __future__ import annotations

from collections import Counter

from engine.agent.replay import FinishedTurn
from engine.inference.base import ChatResponse
from engine.orchestrator.rollout_counts import RATE_WINDOW_S, RolloutCounts
from engine.types import (
    Grade,
    RolloutKey,
    RolloutPhase,
    Step,
    TerminationReason,
    ToolCall,
    Trajectory,
    Verdict,
)


def key(index: int, phase: str = "train") -> RolloutKey:
    return RolloutKey(iteration=0, phase=phase, task_id="t", index=index)


def finished_turn(
    tokens: int = 0, *, call: ToolCall | None = None, is_replayed: bool = False, **flags: bool
) -> FinishedTurn:
    step = Step(index=0, thought="", response="", call=call, observation="", generated_tokens=tokens)
    return FinishedTurn(step=step, response=ChatResponse(content=""), is_replayed=is_replayed, **flags)


def ended_rollout(
    of: RolloutKey, grade: Grade | None = None, reason: TerminationReason = TerminationReason.SUBMITTED
) -> Trajectory:
    return Trajectory(key=of, steps=(), termination=reason, grade=grade)


def test_rollouts_are_counted_by_what_they_do_until_they_end() -> None:
    counts = RolloutCounts()
    for index, phase in enumerate((*RolloutPhase, RolloutPhase.MODEL)):
        counts.enter(key(index), phase)
    counts.enter(key(0, "eval:heldout"), RolloutPhase.TOOLS)
    live = {"queued": 1, "starting": 1, "sampling": 2, "tools": 1, "running": 4, "grading": 1}
    assert counts.in_flight("train", left=0) == {**live, "tokens_per_s": None}
    assert counts.in_flight("train", left=9)["queued"] == 4, "with those that no place was asked for"
    counts.enter(key(2), None)
    assert counts.in_flight("train", left=0)["sampling"] == 1


def test_steps_and_results_are_counted_by_phase_of_the_run() -> None:
    counts = RolloutCounts()
    for index in range(3):
        counts.start(key(index))
        counts.step(key(index), finished_turn())
    assert counts.live_steps("train") == 3
    counts.finish(ended_rollout(key(0), Grade(verdict=Verdict.PASSED, reward=1.0)))
    counts.finish(ended_rollout(key(1), Grade(verdict=Verdict.FAILED, reward=0.0)))
    counts.finish(ended_rollout(key(2), reason=TerminationReason.ENV_ERROR))
    assert counts.of("train") >= Counter(finished=3, graded=2, solved=1, lost=1, steps=3)
    assert (counts.live_steps("train"), counts.num_finished, counts.of("eval:heldout")) == (0, 3, {})


def test_tool_calls_are_counted_in_sampled_responses() -> None:
    now = 100.0
    counts = RolloutCounts(lambda: now)
    done = ToolCall(name="finish", arguments={})
    counts.enter(key(0), RolloutPhase.MODEL)
    now += 2
    counts.enter(key(1), RolloutPhase.MODEL)
    counts.step(key(0), finished_turn(10, call=done, has_call=True))
    counts.step(key(0), finished_turn(10, has_call=True, was_cut_off=True))
    counts.step(key(1), finished_turn(10))
    counts.step(key(1), finished_turn(10, call=done, is_replayed=True))
    now += 3
    counts.enter(key(0), RolloutPhase.TOOLS)
    now += 4
    counts.enter(key(1), None)
    now += 100
    calls = counts.calls("train")
    assert (calls.responses, calls.responses_with_call, calls.valid_calls) == (3, 2, 1)
    assert (calls.responses_cut_off, calls.response_tokens, calls.sampling_seconds) == (1, 30, 9.0)


def test_rate_counts_sampled_tokens_of_the_last_minute_since_rollouts_began() -> None:
    now = 100.0
    counts = RolloutCounts(lambda: now)

    def rate() -> float | None:
        measured: float | None = counts.in_flight("train", left=0)["tokens_per_s"]
        return measured

    counts.enter(key(0), RolloutPhase.MODEL)
    counts.step(key(0), finished_turn(389))
    assert rate() is None, "no rate over no time"
    now += 10
    counts.step(key(0), finished_turn(11))
    counts.step(key(0), finished_turn(5_000, is_replayed=True))
    assert rate() == 40.0
    now += RATE_WINDOW_S - 5
    assert rate() == 11 / RATE_WINDOW_S
    now += 10
    assert rate() is None
    counts.enter(key(0), None)
    now += 1000
    counts.enter(key(1), RolloutPhase.MODEL)
    now += 2
    counts.step(key(1), finished_turn(6))
    assert rate() == 3.0, "the time without rollouts is left out"
