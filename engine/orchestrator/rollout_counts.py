"""Counts of an attempt's rollouts and of the steps of those in flight."""

from __future__ import annotations

from collections import Counter

from engine.types import RolloutKey


class RolloutCounts:
    """Counts updated by rollout observers and read by progress reports."""

    def __init__(self) -> None:
        self.finished: Counter[str] = Counter()
        """Phase of the run → finished rollouts."""
        self._steps: dict[RolloutKey, int] = {}
        """Rollouts in flight, with their steps."""

    def running(self, phase: str) -> int:
        """Return the number of a phase's rollouts in flight."""
        return sum(key.phase == phase for key in self._steps)

    def live_steps(self, phase: str) -> int:
        """Return the number of steps of a phase's rollouts in flight."""
        return sum(steps for key, steps in self._steps.items() if key.phase == phase)

    def start(self, key: RolloutKey) -> None:
        """Count a rollout that starts or restarts."""
        self._steps[key] = 0

    def step(self, key: RolloutKey) -> None:
        """Count a step."""
        self._steps[key] = self._steps.get(key, 0) + 1

    def finish(self, key: RolloutKey) -> None:
        """Count the end of a rollout."""
        self._steps.pop(key, None)
        self.finished[key.phase] += 1
