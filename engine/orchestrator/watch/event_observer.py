"""Conversion of the engine's types to events. To record more of a step or a trajectory, start here."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from engine.agent.replay import FinishedTurn
from engine.events.delivery.sink import EventSink
from engine.events.token_block import TokenBlock
from engine.events.types import StepFinished, TrajectoryFinished, TrajectoryStarted
from engine.orchestrator.rollout_counts import RolloutCounts
from engine.orchestrator.watch.phase_lanes import PhaseLanes
from engine.rollout.recorded import sampled_response
from engine.rollout.summary import RolloutSummary
from engine.threads import in_thread
from engine.types import RolloutKey, RolloutPhase, Step, Trajectory

TRAIN_PHASE = "train"
DurationObserver = Callable[[str, float], None]
"""Callback that adds a duration in seconds to the histogram of that name."""


class EventObserver:
    """Observer that records rollouts as events, and their durations in the pool's histograms.

    Token columns are included only in trajectories of the training phase, which were trained on.

    Args:
        sink: receives the events.
        observe_duration: receives durations of commands and gradings.
        lanes: receives the phases of rollouts.
        counts: receives the numbers of rollouts and steps.
        with_responses: whether to record the policy's raw responses, for replays.
    """

    def __init__(
        self,
        sink: EventSink,
        *,
        observe_duration: DurationObserver | None = None,
        lanes: PhaseLanes | None = None,
        counts: RolloutCounts | None = None,
        with_responses: bool = False,
    ) -> None:
        self._sink = sink
        self._counts = counts or RolloutCounts()
        self._with_responses = with_responses
        self._lanes = lanes
        self._observe_duration = observe_duration
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="events")

    def close(self) -> None:
        """Stop the thread that records trajectories."""
        self._thread.shutdown()

    def trajectory_started(self, key: RolloutKey, sandbox_id: str) -> None:
        """Record the admission of a rollout, also a repeated one after an infrastructure failure."""
        self._counts.start(key)
        self._sink.emit(TrajectoryStarted, ref=ref(key), sandbox_id=sandbox_id)

    def phase_changed(self, key: RolloutKey, phase: RolloutPhase | None) -> None:
        """Count the phase, and record its start in the timeline."""
        self._counts.enter(key, phase)
        if self._lanes is not None:
            self._lanes.enter(key, phase)

    def step_finished(self, key: RolloutKey, turn: FinishedTurn) -> None:
        """Record a finished turn."""
        step = turn.step
        self._counts.step(key, turn)
        sampled = sampled_response(turn) if self._with_responses else None
        self._sink.emit(
            StepFinished, ref=ref(key), replayed=turn.is_replayed, sampled=sampled, **step_fields(step)
        )
        if self._observe_duration is not None and step.call is not None:
            self._observe_duration("exec", step.tool_seconds)

    async def trajectory_finished(self, trajectory: Trajectory) -> None:
        """Record the terminal event; built in a thread, one at a time, as tokens and log take megabytes."""
        await in_thread(partial(self._record, trajectory), executor=self._thread)
        self._counts.finish(trajectory)
        grade = trajectory.grade
        if self._observe_duration is not None and grade is not None and grade.seconds and not grade.reused:
            self._observe_duration("grade", grade.seconds)

    def _record(self, trajectory: Trajectory) -> None:
        self._sink.emit(TrajectoryFinished, **trajectory_fields(trajectory))


def ref(key: RolloutKey) -> dict[str, Any]:
    """Return a rollout's key as an event's ``ref``."""
    return dataclasses.asdict(key)


def step_fields(step: Step) -> dict[str, Any]:
    """Return all fields of a ``step_finished`` event except its ``ref``."""
    fields = {
        name: clean(getattr(step, name)) for name in ("thought", "response", "observation", "error")
    } | {
        name: getattr(step, name)
        for name in (
            "index",
            "exit_code",
            "done",
            "prompt_tokens",
            "cached_tokens",
            "generated_tokens",
            "thinking_tokens",
            "cost",
            "provider_state",
            "truncated_chars",
            "model_seconds",
            "tool_seconds",
            "policy_version",
        )
    }
    if step.call is not None:
        fields |= {"tool": clean(step.call.name), "arguments": clean(step.call.arguments)}
    return fields


def trajectory_fields(trajectory: Trajectory) -> dict[str, Any]:
    """Return all fields of a ``trajectory_finished`` event."""
    versions = [step.policy_version for step in trajectory.steps] or [0]
    with_tokens = trajectory.key.phase == TRAIN_PHASE and len(trajectory.tokens)
    return {
        **RolloutSummary.of(trajectory).recorded(),
        "ref": ref(trajectory.key),
        "patch": clean(trajectory.patch),
        "error": clean(trajectory.error),
        "prompt": trajectory.prompt,
        "prompt_hash": trajectory.prompt_hash,
        "opening": [
            {"role": message.role, "content": clean(message.content)} for message in trajectory.opening
        ],
        "replay": dataclasses.asdict(trajectory.replay) if trajectory.replay is not None else None,
        "policy_version_min": min(versions),
        "policy_version_max": max(versions),
        "findings": [
            {"kind": finding.kind, "detail": clean(finding.detail), "step": finding.step}
            for finding in trajectory.findings
        ],
        "tokens": TokenBlock.of(trajectory.tokens) if with_tokens else None,
        **_grade_fields(trajectory),
    }


def clean(value: Any) -> Any:
    """Return hostile text as valid Unicode: lone surrogates, which JSON cannot represent, become ``?``."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {clean(name): clean(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    return value


def _grade_fields(trajectory: Trajectory) -> dict[str, Any]:
    grade = trajectory.grade
    if grade is None:
        return {}
    return {
        "tests": [dataclasses.asdict(test) | {"test_id": clean(test.test_id)} for test in grade.tests],
        "test_log": clean(grade.log),
        "whole_test_log": base64.b64encode(grade.whole_log).decode(),
        "detail": clean(grade.detail),
        "counterfactual": grade.counterfactual,
        "extra_runs": grade.extra_runs,
    }
