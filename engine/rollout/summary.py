"""Numbers of finished rollouts, for metrics and evaluations."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from engine.types import (
    INFRASTRUCTURE_REASONS,
    RolloutKey,
    TerminationReason,
    Trajectory,
    Verdict,
    is_cut_short,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSummary:
    """Numbers of one finished rollout, without its texts and tokens.

    Fields are named as in ``engine.events.types.TrajectoryFinished``, which records all but the key.
    """

    key: RolloutKey
    termination: TerminationReason
    verdict: Verdict | None
    reward: float | None
    reused_verdict: bool
    failure: str
    attempts: int
    num_steps: int
    unparsed_steps: int
    forks: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    thinking_tokens: int | None
    cost: float | None
    queue_seconds: float
    sandbox_seconds: float
    pull_seconds: float
    start_seconds: float
    model_seconds: float
    tool_seconds: float
    grading_seconds: float
    graded_seconds: float
    extra_grading_seconds: float
    total_seconds: float

    @classmethod
    def of(cls, trajectory: Trajectory) -> Self:
        """Summarise a trajectory."""
        steps, timings, grade = trajectory.steps, trajectory.timings, trajectory.grade
        return cls(
            key=trajectory.key,
            termination=trajectory.termination,
            verdict=grade.verdict if grade is not None else None,
            reward=trajectory.reward,
            reused_verdict=grade is not None and grade.reused,
            failure=trajectory.failure,
            attempts=trajectory.attempts,
            num_steps=len(steps),
            unparsed_steps=sum(step.call is None for step in steps),
            forks=max(len(trajectory.tokens.starts) - 1, 0),
            prompt_tokens=steps[0].prompt_tokens if steps else 0,
            **_usage(trajectory),
            queue_seconds=timings.queue,
            sandbox_seconds=timings.sandbox,
            pull_seconds=timings.pull,
            start_seconds=timings.start,
            model_seconds=timings.model,
            tool_seconds=timings.tools,
            grading_seconds=timings.grading,
            graded_seconds=grade.seconds if grade is not None else 0.0,
            extra_grading_seconds=grade.extra_seconds if grade is not None else 0.0,
            total_seconds=timings.total,
        )

    @classmethod
    def from_event(cls, line: bytes) -> Self:
        """Parse a recorded ``trajectory_finished`` event, of this version or an earlier one."""
        data: Mapping[str, Any] = json.loads(line)
        values = {name: data[name] if name in data else _ADDED[name] for name in RECORDED}
        values["termination"] = TerminationReason(data["termination"])
        values["verdict"] = Verdict(data["verdict"]) if data["verdict"] is not None else None
        return cls(key=RolloutKey(**data["ref"]), **values)

    @property
    def is_lost(self) -> bool:
        """Return whether infrastructure lost the rollout or its grading: it is no result of the policy."""
        return self.termination in INFRASTRUCTURE_REASONS or self.reward is None

    @property
    def is_solved(self) -> bool:
        """Return whether the hidden tests passed."""
        return self.verdict is Verdict.PASSED

    @property
    def is_cut_short(self) -> bool:
        """Return whether a time limit ended the rollout unsolved."""
        return is_cut_short(self.termination, solved=None if self.is_lost else self.is_solved)

    def recorded(self) -> dict[str, Any]:
        """Return the fields of the event."""
        return {name: getattr(self, name) for name in RECORDED}


RECORDED = tuple(field.name for field in fields(RolloutSummary) if field.name != "key")
"""Names of the fields that ``trajectory_finished`` events have too."""


_ADDED: Mapping[str, Any] = {
    "unparsed_steps": 0,
    "forks": 0,
    "cached_tokens": 0,
    "cost": None,
    "graded_seconds": 0.0,
    "extra_grading_seconds": 0.0,
}
"""Default values of fields that events of earlier versions lack."""


def _usage(trajectory: Trajectory) -> dict[str, Any]:
    steps, cost = trajectory.steps, trajectory.cost
    thinking = [step.thinking_tokens for step in steps if step.thinking_tokens is not None]
    if cost is None and (known := [step.cost for step in steps if step.cost is not None]):
        cost = math.fsum(known)
    return {
        "cached_tokens": sum(step.cached_tokens for step in steps),
        "generated_tokens": sum(step.generated_tokens for step in steps),
        "thinking_tokens": sum(thinking) if len(thinking) == len(steps) else None,
        "cost": cost,
    }
