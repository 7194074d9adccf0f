"""Reports of a run's use of its machine: fields, thinning, and no report after the end."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from engine.events.system import SystemSampled
from engine.orchestrator.watch import system
from engine.orchestrator.watch.system import SystemSampler
from engine.processes.usage import MachineUsage, machine_usage
from tests.unit.orchestrator.memory_sink import MemorySink


def wait_for(sink: MemorySink, count: int) -> None:
    end = time.monotonic() + 30
    while len(sink.events) < count and time.monotonic() < end:
        time.sleep(0.01)


def event(fields: dict[str, Any]) -> SystemSampled:
    return SystemSampled(seq=1, epoch=1, time=time.time(), **fields)


def test_measurements_become_events_until_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "SAMPLE_S", 0.02)
    (tmp_path / "weights").write_bytes(b"x" * 300_000)
    sink = MemorySink()
    with SystemSampler(tmp_path, sink):
        wait_for(sink, 2)
    count = len(sink.events)
    time.sleep(0.1)
    assert len(sink.events) == count >= 2
    sampled = event(sink.events[-1][1])
    assert sampled.folder >= 300_000
    assert sampled.memory_engine > 10 << 20
    assert sampled.memory_machine < sampled.memory_total
    assert sampled.disk_free > 0
    assert sampled.cores >= 1
    # A day of one event a minute.
    assert 24 * 60 * len(sampled.model_dump_json()) < 1_000_000


def test_later_reports_combine_measurements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "SAMPLE_S", 0.02)
    monkeypatch.setattr(system, "DETAILED_S", 0.0)
    monkeypatch.setattr(system, "REPORT_S", 0.2)
    sink = MemorySink()
    with SystemSampler(tmp_path, sink):
        wait_for(sink, 2)
    assert all(event(fields).seconds >= 0.1 for _, fields in sink.events)


def test_sampling_continues_after_a_failed_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "SAMPLE_S", 0.02)
    calls: list[int] = []

    def failing() -> MachineUsage:
        calls.append(1)
        if len(calls) in (1, 3):
            raise OSError("too many open files")
        return machine_usage()

    monkeypatch.setattr(system, "machine_usage", failing)
    sink = MemorySink()
    with SystemSampler(tmp_path, sink):
        wait_for(sink, 2)
    assert len(sink.events) >= 2
    assert len(calls) >= 5


def test_a_failing_sink_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "SAMPLE_S", 0.02)
    tried = []

    class FullDisk(MemorySink):
        def emit(self, event_type: type[Any], /, **fields: Any) -> int:
            tried.append(json.dumps(fields))
            raise OSError("no space left on device")

    with SystemSampler(tmp_path, FullDisk()):
        end = time.monotonic() + 30
        while len(tried) < 2 and time.monotonic() < end:
            time.sleep(0.01)
    assert len(tried) >= 2
