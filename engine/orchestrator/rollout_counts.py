"""Counts of an attempt's rollouts and tokens, for progress reports."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from engine.agent.replay import FinishedTurn
from engine.evaluation.calls import CallCounts
from engine.rollout.summary import RolloutSummary
from engine.types import RolloutKey, RolloutPhase, Trajectory

RATE_WINDOW_S = 60.0
"""Time over which the rate of tokens is measured, seconds."""
MIN_RATE_S = 1.0
"""Minimum time before a rate is reported, seconds."""
_ACTIVE = {
    "starting": RolloutPhase.SANDBOX,
    "sampling": RolloutPhase.MODEL,
    "tools": RolloutPhase.TOOLS,
}
"""Field of ``CollectionProgress`` → phase of an active rollout."""


class RolloutCounts:
    """Counts updated by rollout observers and read by progress reports.

    Args:
        clock: monotonic time, seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.totals: dict[str, Counter[str]] = {}
        """Phase of the run → number of ``finished``, ``graded``, ``solved`` and ``lost`` rollouts, of
        ``steps``, of sampled ``responses``, of those ``with_call``, ``valid`` and ``cut_off``, and of their
        ``tokens``."""
        self.sampling_seconds = 0.0
        """Time in which at least one rollout waited for a response."""
        self._clock = clock
        self._phases: dict[RolloutKey, RolloutPhase] = {}
        self._num_sampling = 0
        self._sampling_since = 0.0
        self._steps: Counter[RolloutKey] = Counter()
        """Steps of rollouts in flight."""
        self._since = 0.0
        """Time when the first rollout of those in flight began, after a time without any."""
        self._responses: deque[tuple[float, int]] = deque()
        """Time and tokens of the responses since then, within ``RATE_WINDOW_S``."""

    @property
    def num_finished(self) -> int:
        """Return the number of finished rollouts in all phases of the run."""
        return sum(totals["finished"] for totals in self.totals.values())

    def of(self, phase: str) -> Counter[str]:
        """Return a copy of a phase's totals."""
        return Counter(self.totals.get(phase, {}))

    def live_steps(self, phase: str) -> int:
        """Return the number of steps of a phase's rollouts in flight."""
        return sum(steps for key, steps in self._steps.items() if key.phase == phase)

    def enter(self, key: RolloutKey, phase: RolloutPhase | None) -> None:
        """Count the start of a rollout's phase, or the rollout's end (None)."""
        now = self._clock()
        if not self._phases:
            self._since = now
            self._responses.clear()
        if self._phases.pop(key, None) is RolloutPhase.MODEL:
            self._num_sampling -= 1
            if not self._num_sampling:
                self.sampling_seconds += now - self._sampling_since
        if phase is RolloutPhase.MODEL:
            if not self._num_sampling:
                self._sampling_since = now
            self._num_sampling += 1
        if phase is not None:
            self._phases[key] = phase

    def start(self, key: RolloutKey) -> None:
        """Count a rollout that starts or restarts."""
        self._steps[key] = 0

    def step(self, key: RolloutKey, turn: FinishedTurn) -> None:
        """Count a step and its response; that of a replayed step was sampled by an earlier attempt."""
        self._steps[key] += 1
        totals, tokens = self._totals(key), turn.step.generated_tokens
        totals["steps"] += 1
        if turn.is_replayed:
            return
        totals.update(
            responses=1,
            with_call=turn.has_call,
            valid=turn.step.call is not None,
            cut_off=turn.was_cut_off,
            tokens=tokens,
        )
        if tokens:
            self._responses.append((self._clock(), tokens))

    def finish(self, trajectory: Trajectory) -> None:
        """Count the end of a rollout."""
        self._steps.pop(trajectory.key, None)
        rollout = RolloutSummary.of(trajectory)
        self._totals(trajectory.key).update(
            finished=1,
            graded=not rollout.is_lost,
            solved=not rollout.is_lost and rollout.is_solved,
            lost=rollout.is_lost,
        )

    def calls(self, phase: str) -> CallCounts:
        """Return the tool calls in a phase's responses; the only phase of the run."""
        totals = self.of(phase)
        return CallCounts(
            responses=totals["responses"],
            responses_with_call=totals["with_call"],
            valid_calls=totals["valid"],
            responses_cut_off=totals["cut_off"],
            response_tokens=totals["tokens"],
            sampling_seconds=round(self.sampling_seconds, 2),
        )

    def in_flight(self, phase: str, *, left: int) -> dict[str, Any]:
        """Return the fields of ``CollectionProgress`` about rollouts that have not finished.

        Args:
            phase: phase of the run.
            left: number of its unfinished rollouts; 0 where it is unknown.
        """
        live = Counter(now for key, now in self._phases.items() if key.phase == phase)
        active = {name: live[of] for name, of in _ACTIVE.items()}
        grading = live[RolloutPhase.GRADING]
        return {
            "queued": max(live[RolloutPhase.PLACE], left - sum(active.values()) - grading),
            **active,
            "running": sum(active.values()),
            "grading": grading,
            "tokens_per_s": self._tokens_per_s(),
        }

    def _tokens_per_s(self) -> float | None:
        """Return the rate of sampled tokens in the last ``RATE_WINDOW_S``; None without a response in it."""
        now = self._clock()
        while self._responses and now - self._responses[0][0] > RATE_WINDOW_S:
            self._responses.popleft()
        seconds = min(now - self._since, RATE_WINDOW_S)
        if not self._responses or seconds < MIN_RATE_S:
            return None
        return sum(tokens for _, tokens in self._responses) / seconds

    def _totals(self, key: RolloutKey) -> Counter[str]:
        return self.totals.setdefault(key.phase, Counter())
