"""Observers of live rollouts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from engine.agent.replay import FinishedTurn
from engine.types import RolloutKey, RolloutPhase, Trajectory


class RolloutObserver(Protocol):
    """Observer called on the event loop, in order per rollout; synchronous methods must return at once.

    Its exceptions (a fenced run, a full disk) stop the whole collection.
    """

    def trajectory_started(self, key: RolloutKey, sandbox_id: str) -> None:
        """Handle the start of a rollout or of a new attempt; ``sandbox_id`` is empty when none started."""

    def phase_changed(self, key: RolloutKey, phase: RolloutPhase | None) -> None:
        """Handle the start of a rollout's phase, which ends the one before; None at the rollout's end."""

    def step_finished(self, key: RolloutKey, turn: FinishedTurn) -> None:
        """Handle a finished step of a live rollout."""

    async def trajectory_finished(self, trajectory: Trajectory) -> None:
        """Handle the rollout's terminal record."""


class ObserverFailedError(Exception):
    """An observer raised the exception given as cause; never treated as a failure of the rollout."""


class GuardedObserver:
    """Observer that wraps another's exceptions, so that rollouts do not handle them as their own."""

    def __init__(self, observer: RolloutObserver) -> None:
        self._observer = observer

    def trajectory_started(self, key: RolloutKey, sandbox_id: str) -> None:
        """Forward the call."""
        with _marked():
            self._observer.trajectory_started(key, sandbox_id)

    def phase_changed(self, key: RolloutKey, phase: RolloutPhase | None) -> None:
        """Forward the call."""
        with _marked():
            self._observer.phase_changed(key, phase)

    def step_finished(self, key: RolloutKey, turn: FinishedTurn) -> None:
        """Forward the call."""
        with _marked():
            self._observer.step_finished(key, turn)

    async def trajectory_finished(self, trajectory: Trajectory) -> None:
        """Forward the call."""
        with _marked():
            await self._observer.trajectory_finished(trajectory)


@contextmanager
def _marked() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise ObserverFailedError(str(error)) from error
