"""The ledger of local sandboxes: one file each, written before the sandbox exists and removed after it is
gone.

A file names everything a stranger needs to clean up after a dead owner: who owns it, since when, until when,
its processes and cgroups. Times are of the monotonic clock together with the boot they belong to, so neither
a clock jump nor a reboot can confuse the reaper. A new kind of leftover gets a field here and a line in
``engine.sandbox.local.backend``.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Self

from engine.sandbox.base import SandboxSpec


def boot_id() -> str:
    """Identity of the running kernel's boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def process_start(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot, which makes a pid unique; None when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One sandbox, as the reaper sees it."""

    id: str
    run_id: str
    name: str
    image: str
    boot: str = field(default_factory=boot_id)
    owner_pid: int
    owner_start: int
    deadline: float
    """Monotonic seconds after which the sandbox may be removed whoever owns it."""
    cgroups: tuple[str, ...] = ()
    pid: int = 0
    """The bubblewrap process, 0 until it is known."""
    pid_start: int = 0

    @classmethod
    def of_this_process(cls, sandbox_id: str, spec: SandboxSpec, *, cgroups: tuple[str, ...] = ()) -> Self:
        """The entry of a sandbox that is about to be made, whose lifetime begins now."""
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
        """Whether the owner is dead, the deadline is over, or the machine was restarted since."""
        return (
            self.boot != boot_id()
            or process_start(self.owner_pid) != self.owner_start
            or time.monotonic() > self.deadline
        )

    def alive(self) -> bool:
        """Whether its bubblewrap process still runs."""
        return self.pid > 0 and self.boot == boot_id() and process_start(self.pid) == self.pid_start


class Ledger:
    """The entries below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, entry: LedgerEntry) -> None:
        """Add or replace an entry, atomically."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(entry.id)
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(asdict(entry)))
        temporary.replace(path)

    def started(self, entry: LedgerEntry, pid: int) -> LedgerEntry:
        """Note the sandbox's process."""
        entry = replace(entry, pid=pid, pid_start=process_start(pid) or 0)
        self.write(entry)
        return entry

    def remove(self, entry: LedgerEntry) -> None:
        """Forget a sandbox that is gone."""
        self._path(entry.id).unlink(missing_ok=True)

    def entries(self) -> Iterator[LedgerEntry]:
        """Every readable entry; what another reaper removes meanwhile is skipped."""
        for path in sorted(self.folder.glob("*.json")):
            try:
                row = json.loads(path.read_text())
                yield LedgerEntry(**{**row, "cgroups": tuple(row["cgroups"])})
            except FileNotFoundError:
                continue

    def _path(self, sandbox_id: str) -> Path:
        return self.folder / f"{sandbox_id}.json"
