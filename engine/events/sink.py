"""Where a run's events go."""

from __future__ import annotations

from typing import Any, Protocol


class EventSink(Protocol):
    """Assigns ``seq``, ``epoch`` and ``time``, appends durably, returns at once.

    Example: ``sink.emit(IterationStarted, iteration=3, policy_version=3, task_ids=[...])``.
    """

    def emit(self, event_type: type[Any], /, **fields: Any) -> int:
        """Append one event and return its ``seq``. Raises FencedError, OSError (disk full)."""
