"""Operating-system processes: their identity, their secrets (``environment``) and their end (``guard``)."""

from __future__ import annotations

from pathlib import Path


def process_start(pid: int) -> int | None:
    """Return a process's start time in clock ticks since boot; None when it is gone or a zombie.

    A pid is used again after its process has ended; the pair of pid and start time is not.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
