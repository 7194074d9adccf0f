"""Waiting time of rollouts for engines and rate limits; their time limits exclude it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from engine.types import RolloutKey


@dataclass(slots=True)
class _Wait:
    seconds: float = 0.0
    since: float | None = None
    """Start of the current wait, monotonic seconds."""
    sent_at: float = 0.0
    """Start of the current attempt, monotonic seconds."""


class Waits:
    """Waiting clock of each rollout: from a request to its successful attempt, failed ones included."""

    def __init__(self) -> None:
        self._waits: dict[RolloutKey, _Wait] = {}

    def seconds(self, key: RolloutKey) -> float:
        """Return a rollout's waiting time so far, seconds."""
        wait = self._waits.get(key, _Wait())
        return wait.seconds + (0.0 if wait.since is None else time.monotonic() - wait.since)

    def begin(self, key: RolloutKey) -> None:
        """Start the clock unless it runs: a request waits to be sent."""
        wait = self._waits.setdefault(key, _Wait())
        if wait.since is None:
            wait.since = time.monotonic()

    def sent(self, key: RolloutKey) -> None:
        """Stop the clock: an engine has the request."""
        wait = self._waits.setdefault(key, _Wait())
        wait.seconds, wait.since, wait.sent_at = self.seconds(key), None, time.monotonic()

    def failed(self, key: RolloutKey) -> None:
        """Restart the clock, counting from the start of the failed attempt."""
        wait = self._waits.setdefault(key, _Wait())
        wait.since = wait.sent_at

    def end(self, key: RolloutKey) -> None:
        """Stop the clock: the request has ended."""
        if (wait := self._waits.get(key)) is not None:
            wait.seconds, wait.since = self.seconds(key), None

    def release(self, key: RolloutKey) -> None:
        """Forget a rollout."""
        self._waits.pop(key, None)
