"""Load of the machine: rollouts of a busy one reach their time limits sooner."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

LOAD = "machine/load"
"""Metric: runnable processes per core."""
THROTTLED = "machine/throttled_share"
"""Metric: share of the scheduler's periods in which the processor quota stopped the container."""
MAX_LOAD = 4.0
MAX_THROTTLED = 0.5
_CGROUPS = Path("/sys/fs/cgroup")
_AVERAGED_S = (60.0, 300.0, 900.0)
"""Periods of the kernel's three load averages, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLoad:
    """Load of the machine during some work."""

    per_core: float
    cores: int
    throttled: float | None
    """None where no quota limits this process."""

    @property
    def is_high(self) -> bool:
        """Return whether work takes several times as long as on a free machine."""
        return self.per_core >= MAX_LOAD or (self.throttled or 0.0) >= MAX_THROTTLED

    @property
    def metrics(self) -> dict[str, float]:
        """Return the load as metrics of an iteration or evaluation."""
        known = {THROTTLED: self.throttled} if self.throttled is not None else {}
        return {LOAD: self.per_core, **known}

    def __str__(self) -> str:
        text = f"load {self.per_core * self.cores:.1f} on {self.cores} core{'s' * (self.cores != 1)}"
        if self.throttled:
            text += f", processor quota reached in {self.throttled:.0%} of the time"
        return text


class MachineProbe:
    """Measures the load since its creation or its last reset."""

    def __init__(self) -> None:
        self._cores = len(os.sched_getaffinity(0))
        self.reset()

    def reset(self) -> None:
        """Start to measure anew."""
        self._started, self._periods = time.monotonic(), _throttled_periods()

    def load(self) -> MachineLoad:
        """Return the load so far: the average over the shortest of the kernel's periods that covers it."""
        elapsed = time.monotonic() - self._started
        averages = dict(zip(_AVERAGED_S, os.getloadavg(), strict=True))
        covering = next((period for period in _AVERAGED_S if period >= elapsed), _AVERAGED_S[-1])
        periods, throttled = (
            now - before for now, before in zip(_throttled_periods(), self._periods, strict=True)
        )
        return MachineLoad(
            per_core=averages[covering] / self._cores,
            cores=self._cores,
            throttled=throttled / periods if periods > 0 else None,
        )


def _throttled_periods() -> tuple[int, int]:
    """Return the scheduler's periods under a quota, and those in which it was reached; zeros without one."""
    for folder in (_CGROUPS / _own_group(), _CGROUPS, _CGROUPS / "cpu"):
        try:
            lines = (folder / "cpu.stat").read_text().splitlines()
        except OSError:
            continue
        stat = dict(line.split(maxsplit=1) for line in lines)
        if "nr_periods" in stat:
            return int(stat["nr_periods"]), int(stat["nr_throttled"])
    return 0, 0


def _own_group() -> str:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return ""
    return next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
