"""Memory of an engine: its limit, and its rank among the kernel's out-of-memory victims.

Whatever an engine does, the services of its machine stay: its processes together have a control group with
the machine's memory less a reserve, or where there is none an own limit each, and when memory runs out the
kernel chooses them before the web server and PostgreSQL. Local sandboxes count in that group under version 1,
and have only their own limits under version 2.
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path

from engine.processes import cgroups, process_start

LIMIT_VARIABLE = "TRAINYARD_ENGINE_MEMORY_MB"
"""Environment variable with the limit of an engine; without it, the machine's memory less a reserve."""
_RESERVE_SHARE = 0.1
_RESERVE_BYTES = (1 << 30, 16 << 30)
"""Least and greatest reserve."""
_VICTIM_RANK = "500"
"""``oom_score_adj`` of an engine and its processes: less than commands in sandboxes, more than services."""


def limit_memory() -> None:
    """Limit the memory of this process and those it starts, together or each, and raise their rank."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_VICTIM_RANK)
    limit = _limit_bytes()
    try:
        groups = cgroups.detect()
        if groups is not None:
            name = _group(os.getpid(), process_start(os.getpid()) or 0)
            cgroups.join(groups.create(name, cgroups.GroupLimits(limit)))
            return
    except OSError:
        pass  # they look writable and are not
    # Not the address space: CUDA and allocators reserve many times what they use.
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, most))


def was_killed_for_memory(pid: int, started: int) -> bool:
    """Return whether the kernel killed a process of an engine on this machine for its memory.

    Without control groups nobody knows: False.

    Args:
        pid, started: the engine's process and its start time (``process_start``).
    """
    groups = cgroups.detect()
    return groups is not None and cgroups.oom_killed(groups.plan(_group(pid, started)))


def _group(pid: int, started: int) -> str:
    return f"engine-{pid}-{started}"


def _limit_bytes() -> int:
    if megabytes := os.environ.get(LIMIT_VARIABLE, ""):
        return int(megabytes) << 20
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    total = min(physical, cgroups.memory_limit() or physical)
    least, most = _RESERVE_BYTES
    return total - min(most, max(least, int(_RESERVE_SHARE * total)), total // 2)
