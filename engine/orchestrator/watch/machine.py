"""Load of the machine; on a busy one, rollouts reach their time limits sooner."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from engine.processes import cgroups

LOAD = "machine/load"
"""Metric: runnable processes per core."""
THROTTLED = "machine/throttled_share"
"""Metric: share of the scheduler's periods in which the processor quota stopped the container."""
MAX_LOAD = 4.0
MAX_THROTTLED = 0.5
_AVERAGED_S = (60.0, 300.0, 900.0)
"""Periods of the kernel's three load averages, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLoad:
    """Load of the machine over a period."""

    per_core: float
    cores: int
    throttled: float | None
    """None where no quota limits this process."""

    @property
    def is_high(self) -> bool:
        """Return whether work takes several times as long as on an idle machine."""
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
    """Measurement of the load since its creation or last reset."""

    def __init__(self) -> None:
        self._cores = len(os.sched_getaffinity(0))
        self.reset()

    def reset(self) -> None:
        """Restart the measurement."""
        self._started, self._periods = time.monotonic(), cgroups.throttled_periods()

    def load(self) -> MachineLoad:
        """Return the load so far: the average over the shortest of the kernel's periods that covers it."""
        elapsed = time.monotonic() - self._started
        averages = dict(zip(_AVERAGED_S, os.getloadavg(), strict=True))
        covering = next((period for period in _AVERAGED_S if period >= elapsed), _AVERAGED_S[-1])
        shares = [
            (throttled - before[0]) / (periods - before[1])
            for group, (throttled, periods) in cgroups.throttled_periods().items()
            if (before := self._periods.get(group, (0, 0)))[1] < periods
        ]
        return MachineLoad(
            per_core=averages[covering] / self._cores,
            cores=self._cores,
            throttled=max(shares, default=None),
        )
