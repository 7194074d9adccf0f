"""Ledger of local sandboxes: one file each, written before the sandbox starts and removed after it ended.

An entry has all that another process needs to clean up after a dead owner: owner, deadline, processes and
cgroups. Times are monotonic and stored with their boot id, so neither a clock jump nor a reboot can confuse
the reaper. A new kind of leftover needs a field here and a line in ``engine.sandbox.local.backend``.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Self

import structlog

from engine.files import atomic_write
from engine.processes import process_start
from engine.sandbox.base import SandboxSpec

_DAMAGED_KEPT_S = 24 * 3600.0
"""Age at which an unreadable entry is removed, as nothing it names can be in use, seconds."""
_log = structlog.get_logger(__name__)


@cache
def boot_id() -> str:
    """Return the identity of the running kernel's boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """Ownership record of one sandbox, for the reaper."""

    id: str
    run_id: str
    name: str
    image: str
    boot: str = field(default_factory=boot_id)
    owner_pid: int
    owner_start: int
    deadline: float
    """Monotonic seconds after which any reaper may remove the sandbox."""
    cgroups: tuple[str, ...] = ()
    pid: int = 0
    """Process id of bubblewrap; 0 before it is known."""
    pid_start: int = 0

    @classmethod
    def of_this_process(cls, sandbox_id: str, spec: SandboxSpec, *, cgroups: tuple[str, ...] = ()) -> Self:
        """Return the entry of a sandbox that is about to start; its lifetime begins now."""
        return cls(
            id=sandbox_id,
            run_id=spec.run_id,
            name=spec.name,
            image=spec.image,
            owner_pid=os.getpid(),
            owner_start=process_start(os.getpid()) or 0,
            deadline=time.monotonic() + spec.limits.lifetime_s,
            cgroups=cgroups,
        )

    def orphaned(self) -> bool:
        """Return whether the owner is dead, the deadline has passed or the machine was restarted."""
        return (
            self.boot != boot_id()
            or process_start(self.owner_pid) != self.owner_start
            or time.monotonic() > self.deadline
        )

    def alive(self) -> bool:
        """Return whether the sandbox's bubblewrap process still runs."""
        return self.pid > 0 and self.boot == boot_id() and process_start(self.pid) == self.pid_start


class Ledger:
    """Ledger entries in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, entry: LedgerEntry) -> None:
        """Add or replace an entry, atomically."""
        self.folder.mkdir(parents=True, exist_ok=True)
        atomic_write(self._path(entry.id), json.dumps(asdict(entry)))

    def started(self, entry: LedgerEntry, pid: int) -> LedgerEntry:
        """Record the sandbox's process id."""
        entry = replace(entry, pid=pid, pid_start=process_start(pid) or 0)
        self.write(entry)
        return entry

    def remove(self, entry: LedgerEntry) -> None:
        """Remove the entry of a sandbox that is gone."""
        self._path(entry.id).unlink(missing_ok=True)

    def entries(self) -> Iterator[LedgerEntry]:
        """Iterate over all entries; those removed meanwhile by another reaper are skipped.

        An unreadable entry is logged, and removed at the age of ``_DAMAGED_KEPT_S``.
        """
        for path in sorted(self.folder.glob("*.json")):
            try:
                row = json.loads(path.read_text())
                entry = LedgerEntry(**{**row, "cgroups": tuple(row["cgroups"])})
            except FileNotFoundError:
                continue
            except (ValueError, TypeError, KeyError) as error:
                _log.warning("ledger_entry_unreadable", path=str(path), error=repr(error))
                _remove_old(path)
                continue
            yield entry

    def _path(self, sandbox_id: str) -> Path:
        return self.folder / f"{sandbox_id}.json"


def _remove_old(path: Path) -> None:
    with suppress(FileNotFoundError):
        if time.time() - path.stat().st_mtime > _DAMAGED_KEPT_S:
            path.unlink()
