"""Purpose of each step of a trajectory, finer than the kind of its tool, and thinking tokens by purpose."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from engine.scanners.trajectory import ScannedStep, ScannedTrajectory

VERSION = 1
"""To be raised with each change of the classification: stored trajectories are then read again."""
PURPOSES = ("locate", "edit", "test", "run", "submit", "other")
"""``locate``: views, searches, and commands that only read. ``edit``: writes of files. ``test``: runs of the
project's tests. ``run``: other commands. ``other``: unknown tools, and steps without a parsed call."""


@dataclass(frozen=True, slots=True)
class Thinking:
    """Thinking tokens over steps."""

    steps: int = 0
    """Steps whose thinking tokens are known."""
    tokens: int = 0

    def __add__(self, other: Thinking) -> Thinking:
        return Thinking(self.steps + other.steps, self.tokens + other.tokens)

    @property
    def mean(self) -> float | None:
        """Return the tokens per step; None without a step."""
        return self.tokens / self.steps if self.steps else None


def thinking_by_purpose(trajectory: ScannedTrajectory) -> dict[str, Thinking]:
    """Return a trajectory's thinking tokens by the purpose of its steps."""
    tests = {run.step.index for run in trajectory.test_runs}
    sums = dict.fromkeys(PURPOSES, Thinking())
    for step in trajectory.steps:
        if step.thinking_tokens is not None:
            sums[_purpose(step, tests)] += Thinking(1, step.thinking_tokens)
    return sums


def _purpose(step: ScannedStep, tests: Collection[int]) -> str:
    if step.index in tests:
        return "test"
    if step.kind == "finish":
        return "submit"
    if step.kind == "edit" or step.writes:
        return "edit"
    if step.kind in ("search", "view") or (step.commands and step.only_reads):
        return "locate"
    return "run" if step.kind == "command" else "other"
