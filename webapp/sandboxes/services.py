"""Storage of leases, pools and reaping results, and reaping on request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from engine.events.sandboxes import PoolStatus, SandboxesChanged, SandboxRecord
from webapp.core.dispatch import TaskName, send_on_commit
from webapp.core.services import audit, notifications
from webapp.rollouts.services.rows import moment
from webapp.runs.models.runs import Run
from webapp.sandboxes.models import Pool, Reaper, Sandbox

_COPIED = (
    "state", "name", "lane", "backend", "node", "warm", "queue_seconds", "pull_seconds", "start_seconds",
    "failure", "reason", "image", "sandbox_id",
)  # fmt: skip
_TIMES = ("leased_at", "started_at", "ended_at")


class SandboxStore:
    """Buffer for the sandbox events of one locked run; stores the last event of each lease."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._leases: dict[str, tuple[SandboxRecord, int]] = {}
        self._status: PoolStatus | None = None
        self._wrote = False

    def changed(self, event: SandboxesChanged) -> None:
        """Buffer new and changed leases."""
        self._leases |= {record.lease: (record, event.epoch) for record in event.records}

    def status(self, event: PoolStatus) -> None:
        """Buffer a newer snapshot of the pool."""
        self._status = event

    def flush(self) -> None:
        """Write the buffer with one statement for the leases and one for the pool."""
        leases, self._leases = self._leases, {}
        if leases:
            self._wrote = True
            Sandbox.objects.bulk_create(
                [_row(self._run, record, epoch) for record, epoch in leases.values()],
                update_conflicts=True,
                unique_fields=["run", "lease"],
                update_fields=["epoch", *_COPIED, *_TIMES],
            )
        status, self._status = self._status, None
        if status is not None:
            Pool.objects.update_or_create(run=self._run, defaults=_pool_fields(status))

    def begin(self) -> None:
        """Mark the previous attempt's open leases as lost and remove its pool."""
        self.flush()
        if not (self._run.last_seq or self._wrote):
            return
        Sandbox.objects.filter(run=self._run, state__in=Sandbox.OPEN).update(state=Sandbox.State.LOST)
        Pool.objects.filter(run=self._run).delete()


def _row(run: Run, record: SandboxRecord, epoch: int) -> Sandbox:
    times = {name: getattr(record, name) for name in _TIMES}
    return Sandbox(
        run=run,
        lease=record.lease,
        epoch=epoch,
        **{name: _fitting(name, getattr(record, name)) for name in _COPIED},
        **{name: moment(value) if value is not None else None for name, value in times.items()},
    )


def _fitting(name: str, value: Any) -> Any:
    """Return a text truncated to the length of its column."""
    length = getattr(Sandbox._meta.get_field(name), "max_length", None)
    return value[:length] if isinstance(value, str) and length else value


def _pool_fields(event: PoolStatus) -> dict[str, Any]:
    fields = event.model_dump(mode="json", exclude={"seq", "epoch", "type", "time"})
    return fields | {"time": moment(event.time)}


@dataclass(frozen=True, slots=True)
class Reaped:
    """Result of reaping one backend, as printed by ``python -m engine.sandbox reap --json``."""

    backend: str
    removed: int
    error: str


def merged(found: Iterable[Reaped]) -> list[Reaped]:
    """Return one result per backend kind, summed over its clusters or daemons."""
    sums: dict[str, Reaped] = {}
    for result in found:
        backend = result.backend
        total = sums.get(backend, Reaped(backend, 0, ""))
        error = "; ".join(filter(None, (total.error, result.error)))
        sums[backend] = Reaped(backend, total.removed + result.removed, error)
    return list(sums.values())


@transaction.atomic
def record_reaping(*, found: Iterable[Reaped], now: datetime | None = None) -> None:
    """Store results of the reaper; notify pages if sandboxes were removed or an error changed."""
    now = now or timezone.now()
    changed = False
    for result in merged(found):
        row, created = Reaper.objects.select_for_update().get_or_create(
            backend=result.backend[:16], defaults={"checked_at": now}
        )
        changed |= created or bool(result.removed) or row.error != result.error
        row.checked_at, row.error = now, result.error
        if result.removed:
            row.removed += result.removed
            row.last_removed, row.last_removed_at = result.removed, now
        row.save()
    if changed:
        notifications.pools_changed()


@transaction.atomic
def request_reaping(*, actor: User | None) -> None:
    """Ask a worker to remove orphaned sandboxes now instead of at its next scheduled check."""
    audit.record(actor=actor, action="sandboxes.reap")
    send_on_commit(TaskName.REAP)


def backend_settings(configs: Iterable[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Return the distinct ``sandbox`` sections of run configurations, always including the local backend."""
    sections: dict[str, dict[str, Any]] = {"local": {"backend": "local"}}
    for config in configs:
        section = config.get("sandbox")
        backend = section.get("backend") if isinstance(section, dict) else None
        if isinstance(section, dict) and isinstance(backend, str) and backend != "local":
            kept = {"backend": backend, backend: section.get(backend, {})}
            sections[repr(sorted(kept.items()))] = kept
    return list(sections.values())
