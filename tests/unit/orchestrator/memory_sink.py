"""A run context with an in-memory event sink."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.events.delivery.control import Control
from engine.orchestrator.context import RunContext


class MemorySink:
    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def emit(self, event_type: type[Any], /, **fields: Any) -> int:
        self.events.append((event_type.__name__, fields))
        return len(self.events)

    @property
    def alerts(self) -> list[dict[str, Any]]:
        return [fields for name, fields in self.events if name == "Alert"]


def context(sink: MemorySink, control: Control | None = None) -> RunContext:
    unused = Path("unused")
    return RunContext(
        run_id="r", epoch=1, run_dir=unused, home=unused, sink=sink, control=control or Control()
    )
