"""The measurement of how long the event loop is held, and the alert about it."""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from engine.events.control import Control
from engine.events.types import Alert
from engine.orchestrator.context import RunContext
from engine.orchestrator.loop_probe import INTERVAL_S, Hold, LatenessHistogram, LoopProbe, LoopReport
from engine.orchestrator.watch.alarms import LOOP_HELD_MAX_MS, Alarms


@pytest.mark.parametrize("share", [0.5, 0.99, 0.999])
def test_percentiles_are_those_of_the_values_within_a_twentieth(share: float) -> None:
    histogram = LatenessHistogram()
    values = [0.02 * 1.013**n for n in range(1000)]
    for value in values:
        histogram.add(value)
    exact = statistics.quantiles(values, n=1000, method="inclusive")[round(share * 1000) - 1]
    assert exact / 1.05 <= histogram.percentile(share) <= exact * 1.05
    assert histogram.percentile(1.0) == histogram.maximum_ms == values[-1]
    assert LatenessHistogram().percentile(0.5) == 0.0


def test_a_hold_counts_for_every_turn_it_made_the_loop_miss() -> None:
    async def measured() -> LoopReport:
        async with LoopProbe() as probe:
            await asyncio.sleep(INTERVAL_S)
            probe.report()
            hold(1.0)
            await asyncio.sleep(2 * INTERVAL_S)
            return probe.report()

    report = asyncio.run(measured())
    metrics = report.metrics
    assert metrics["loop/held_max_ms"] == report.longest.milliseconds >= 1000 * (1.0 - INTERVAL_S)
    assert metrics["loop/held_max_ms"] >= metrics["loop/held_p999_ms"] >= metrics["loop/held_p99_ms"]
    # Turns were due all along: half of the time the wait was more than about half of the hold.
    assert metrics["loop/held_p50_ms"] >= 300


def hold(seconds: float) -> None:
    """Keep the event loop, but not the interpreter."""
    time.sleep(seconds)  # what is measured: the loop must stand still for a known time


def test_the_alert_is_raised_when_a_loop_begins_to_be_held_and_is_no_part_of_the_saved_state() -> None:
    alerts: list[dict[str, Any]] = []

    class Sink:
        def emit(self, event_type: type[Any], /, **fields: Any) -> int:
            assert event_type is Alert
            alerts.append(fields)
            return len(alerts)

    alarms = Alarms(
        RunContext(run_id="r", epoch=1, run_dir=Path("x"), home=Path("x"), sink=Sink(), control=Control())
    )
    before = alarms.state_dict()
    for iteration, held in enumerate([LOOP_HELD_MAX_MS, LOOP_HELD_MAX_MS + 1, 5000.0, 1.0, 5000.0]):
        longest = Hold(milliseconds=2 * held, phase="update", running="engine.trainer.trainer.Trainer.update")
        alarms.loop_held(iteration, LoopReport(metrics={"loop/held_p999_ms": held}, longest=longest))
    assert [alert["iteration"] for alert in alerts] == [1, 4]
    assert {alert["code"] for alert in alerts} == {"event_loop_held"}
    assert (
        "10000 ms at once during 'update', by engine.trainer.trainer.Trainer.update" in alerts[1]["message"]
    )
    assert alarms.state_dict() == before
