"""Histograms of sandbox durations: queue, pull, start, exec, grade.

For another duration, add a name to ``engine.events.sandboxes.CLOCKS`` and call ``observe`` at its end.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any

from engine.events.sandboxes import CLOCK_BOUNDS_S, CLOCKS


@dataclass(slots=True)
class Histogram:
    """Counts of durations: bucket i up to ``CLOCK_BOUNDS_S[i]`` seconds, the last one everything longer."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(CLOCK_BOUNDS_S) + 1))
    total: float = 0.0
    """Sum of all durations, seconds."""

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(CLOCK_BOUNDS_S, seconds)] += 1
        self.total += seconds


class Histograms:
    """One histogram of every name in ``CLOCKS``."""

    def __init__(self) -> None:
        self._histograms = {name: Histogram() for name in CLOCKS}

    def observe(self, name: str, seconds: float) -> None:
        """Count one duration. Raises KeyError for a ``name`` that is not in ``CLOCKS``."""
        self._histograms[name].observe(seconds)

    def records(self) -> dict[str, dict[str, Any]]:
        """Return the fields of ``ClockRecord`` of every histogram that is not empty."""
        return {
            name: {"counts": list(histogram.counts), "total": histogram.total}
            for name, histogram in self._histograms.items()
            if any(histogram.counts)
        }
