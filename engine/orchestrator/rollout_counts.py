"""Counts of an attempt's rollouts and of the steps of those in flight."""

from __future__ import annotations

from engine.types import RolloutKey


class RolloutCounts:
    """Counts that observers of rollouts keep and reports of progress read."""

    def __init__(self) -> None:
        self.finished = 0
        self._steps: dict[RolloutKey, int] = {}
        """Rollouts in flight, with their steps."""

    @property
    def running(self) -> int:
        """Return the number of rollouts in flight."""
        return len(self._steps)

    @property
    def live_steps(self) -> int:
        """Return the number of steps of the rollouts in flight."""
        return sum(self._steps.values())

    def start(self, key: RolloutKey) -> None:
        """Count a rollout that begins, or begins anew."""
        self._steps[key] = 0

    def step(self, key: RolloutKey) -> None:
        """Count a step."""
        self._steps[key] = self._steps.get(key, 0) + 1

    def finish(self, key: RolloutKey) -> None:
        """Count the end of a rollout."""
        self._steps.pop(key, None)
        self.finished += 1
