"""Limits that the agent enforces where the backend cannot, and the processes below the agent."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

PROCESSES_VARIABLE = "TRAINYARD_PROCESSES"
"""Limit of a command's processes and threads, counted while it runs; above it the command is killed."""
RLIMITS_VARIABLE = "TRAINYARD_RLIMITS"
"""Limits that the kernel enforces, ``memory bytes,processes``. The kernel counts processes by user and user
namespace, so this is only for sandboxes with their own user namespace."""


class Process:
    """A row of the process table."""

    def __init__(self, pid: int, state: bytes, parent: int, threads: int) -> None:
        self.pid = pid
        self.state = state
        self.parent = parent
        self.threads = threads


def _table() -> Iterator[Process]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name, "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
                yield Process(int(name), fields[0], int(fields[1]), int(fields[17]))
            except (OSError, IndexError):
                continue


def descendants() -> list[Process]:
    """Return every process below this one."""
    children: dict[int, list[Process]] = {}
    for process in _table():
        children.setdefault(process.parent, []).append(process)
    below: list[Process] = []
    queue = [os.getpid()]
    while queue:
        direct = children.get(queue.pop(), [])
        below += direct
        queue += [process.pid for process in direct]
    return below


def threads() -> int:
    """Count the living threads below this process."""
    return sum(process.threads for process in descendants() if process.state != b"Z")


def process_limit() -> int:
    """Return the limit that the agent enforces by counting; 0 for none."""
    return int(os.environ.get(PROCESSES_VARIABLE) or 0)


def has_rlimits() -> bool:
    """Return whether ``apply_rlimits`` has anything to apply."""
    return bool(os.environ.get(RLIMITS_VARIABLE))


def apply_rlimits() -> None:
    """Set the kernel-enforced limits of this process and its children."""
    wanted = os.environ.get(RLIMITS_VARIABLE)
    if wanted:
        import resource

        memory, processes = (int(part) for part in wanted.split(","))
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
