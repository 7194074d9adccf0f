"""Who is told about rollouts while they happen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from engine.types import RolloutKey, Step, Trajectory


class RolloutObserver(Protocol):
    """Called on the event loop, in order per rollout; what is not awaited must return at once.

    What it raises (a fenced run, a full disk) stops the whole collection.
    """

    def trajectory_started(self, key: RolloutKey, sandbox_id: str) -> None:
        """Handle the start of a rollout or of a new attempt; ``sandbox_id`` is empty when none started."""

    def step_finished(self, key: RolloutKey, step: Step) -> None:
        """Handle a finished step of a live rollout."""

    async def trajectory_finished(self, trajectory: Trajectory) -> None:
        """Handle the rollout's terminal record."""


class ObserverFailedError(Exception):
    """An observer raised; its exception is the cause. Never taken for a rollout's own failure."""


class GuardedObserver:
    """Marks what an observer raises, so that a rollout's own boundary lets it through."""

    def __init__(self, observer: RolloutObserver) -> None:
        self._observer = observer

    def trajectory_started(self, key: RolloutKey, sandbox_id: str) -> None:
        """Pass on."""
        with _marked():
            self._observer.trajectory_started(key, sandbox_id)

    def step_finished(self, key: RolloutKey, step: Step) -> None:
        """Pass on."""
        with _marked():
            self._observer.step_finished(key, step)

    async def trajectory_finished(self, trajectory: Trajectory) -> None:
        """Pass on."""
        with _marked():
            await self._observer.trajectory_finished(trajectory)


@contextmanager
def _marked() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise ObserverFailedError(str(error)) from error
