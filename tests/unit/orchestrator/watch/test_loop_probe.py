"""Measurement of how long the event loop is blocked."""

from __future__ import annotations

import asyncio
import statistics
import time
from types import SimpleNamespace

import pytest
import structlog

from engine.orchestrator import loop_probe
from engine.orchestrator.loop_probe import (
    INTERVAL_S,
    LOGGED_MS,
    Hold,
    LatenessHistogram,
    LoopProbe,
)


@pytest.mark.parametrize("share", [0.5, 0.99, 0.999])
def test_histogram_percentiles_are_within_five_percent(share: float) -> None:
    histogram = LatenessHistogram()
    values = [0.02 * 1.013**n for n in range(1000)]
    for value in values:
        histogram.add(value)
    exact = statistics.quantiles(values, n=1000, method="inclusive")[round(share * 1000) - 1]
    assert exact / 1.05 <= histogram.percentile(share) <= exact * 1.05
    assert histogram.percentile(1.0) == histogram.maximum_ms == values[-1]
    assert LatenessHistogram().percentile(0.5) == 0.0


def test_a_hold_counts_once_for_every_missed_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [0.0]  # seconds by which the probe's clock is ahead
    monkeypatch.setattr(loop_probe, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + held[0]))

    async def measured() -> dict[str, float]:
        async with LoopProbe() as probe:
            await asyncio.sleep(INTERVAL_S)
            probe.report()
            held[0] += 1.0
            await asyncio.sleep(2 * INTERVAL_S)
            return probe.report()

    with structlog.testing.capture_logs() as logs:
        metrics = asyncio.run(measured())
    assert metrics["loop/held_max_ms"] == logs[-1]["milliseconds"] >= 1000 * (1.0 - INTERVAL_S)
    assert metrics["loop/held_max_ms"] >= metrics["loop/held_p999_ms"] >= metrics["loop/held_p99_ms"]
    # Ticks were due throughout: half of them waited for at least about half of the hold.
    assert metrics["loop/held_p50_ms"] >= 300


def test_only_long_holds_of_the_event_loop_are_logged() -> None:
    probe = LoopProbe()
    with structlog.testing.capture_logs() as logs:
        for held in (LOGGED_MS / 2, 2 * LOGGED_MS):
            probe._histogram.add(held)
            probe._longest = Hold(milliseconds=held, phase="update", running="engine.trainer.update")
            probe.report()
    (line,) = logs
    assert (line["event"], line["phase"], line["running"]) == (
        "event_loop_held", "update", "engine.trainer.update",
    )  # fmt: skip
