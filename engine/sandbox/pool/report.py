"""Events of a pool: leases before their sandboxes exist, their state changes, and snapshots.

New leases are reported at once, those admitted together in one event. Later changes wait up to ``REPORT_S``
and are reported with a snapshot, so that a thousand sandboxes cause few events per second. Every record is
complete: the last one of a lease replaces all earlier ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal

import structlog

from engine.errors import TrainyardError
from engine.events.delivery.sink import EventSink
from engine.events.sandboxes import PoolStatus, SandboxesChanged
from engine.events.types import Alert

REPORT_S = 2.0
"""Shortest interval between two snapshots, seconds."""
_BATCH = 200
"""Largest number of records in one event."""

log = structlog.get_logger("pool")
Record = dict[str, Any]


class PoolReporter:
    """Reporter that turns a pool's changes into events.

    Args:
        sink: receives the events; None reports nothing.
        status: returns the current fields of ``PoolStatus``.
    """

    def __init__(self, sink: EventSink | None, status: Callable[[], Record]) -> None:
        self._sink = sink
        self._status = status
        self._changed: dict[str, Record] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def leased(self, records: list[Record]) -> None:
        """Record new leases, before their sandboxes exist. Raises the sink's errors."""
        self._changed |= {record["lease"]: record for record in records}
        self._flush()
        self.touch()

    def changed(self, record: Record) -> None:
        """Replace a lease's record."""
        self._changed[record["lease"]] = record
        self.touch()

    def touch(self) -> None:
        """Schedule a report."""
        if self._timer is None and self._sink is not None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(REPORT_S, self._tick)

    def alert(self, severity: Literal["info", "warning", "error"], code: str, message: str) -> None:
        """Emit an alert at once."""
        self._emit_logged(
            lambda sink: sink.emit(Alert, severity=severity, code=code, message=message, iteration=None)
        )

    def close(self) -> None:
        """Report pending changes; nothing is reported afterwards."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._tick()

    def _tick(self) -> None:
        self._timer = None
        self._emit_logged(lambda _: self._flush())
        self._emit_logged(lambda sink: sink.emit(PoolStatus, **self._status()))

    def _flush(self) -> None:
        changed, self._changed = list(self._changed.values()), {}
        if self._sink is None:
            return
        for start in range(0, len(changed), _BATCH):
            self._sink.emit(SandboxesChanged, records=changed[start : start + _BATCH])

    def _emit_logged(self, tell: Callable[[EventSink], object]) -> None:
        """Emit, logging failures: a timer has no caller, and the run notices a broken spool itself."""
        if self._sink is None:
            return
        try:
            tell(self._sink)
        except (OSError, TrainyardError) as error:
            log.warning("pool_not_reported", why=str(error))
