"""Time that rollouts wait for engines and rate limits, which does not count towards their limits."""

from __future__ import annotations

import time
from dataclasses import dataclass

from engine.types import RolloutKey


@dataclass(slots=True)
class _Wait:
    seconds: float = 0.0
    since: float | None = None
    """Begin of the current wait, monotonic seconds."""
    sent_at: float = 0.0
    """Begin of the current attempt, monotonic seconds."""


class Waits:
    """Clocks of rollouts: they run from a request to the attempt that succeeds, failed attempts included."""

    def __init__(self) -> None:
        self._waits: dict[RolloutKey, _Wait] = {}

    def seconds(self, key: RolloutKey) -> float:
        """Return a rollout's time of waiting so far."""
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
        """Start the clock again, from when the failed attempt began."""
        wait = self._waits.setdefault(key, _Wait())
        wait.since = wait.sent_at

    def end(self, key: RolloutKey) -> None:
        """Stop the clock: the request has ended."""
        if (wait := self._waits.get(key)) is not None:
            wait.seconds, wait.since = self.seconds(key), None

    def release(self, key: RolloutKey) -> None:
        """Forget a rollout."""
        self._waits.pop(key, None)
