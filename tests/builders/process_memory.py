"""Memory of processes, as reported by Linux."""

from __future__ import annotations

from pathlib import Path


def memory(name: str, pid: int | str = "self") -> int:
    """Return a field of a process's ``/proc/PID/status`` in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def forget_peak(pid: int | str = "self") -> None:
    """Reset the peak ``VmHWM`` of a process to its current memory."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
