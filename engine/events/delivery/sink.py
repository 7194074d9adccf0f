"""Interface of event sinks."""

from __future__ import annotations

from typing import Any, Protocol


class EventSink(Protocol):
    """Sink that assigns ``seq``, ``epoch`` and ``time``, appends durably and returns at once.

    Example: ``sink.emit(IterationStarted, iteration=3, policy_version=3, task_ids=[...])``.
    """

    def emit(self, event_type: type[Any], /, **fields: Any) -> int:
        """Append one event and return its ``seq``. Raises FencedError, OSError (disk full)."""
