"""Sampling of a run's use of its machine, as ``system_sampled`` events.

The use is measured every ``SAMPLE_S``. During the first hour of an attempt each measurement is an event,
afterwards one event a minute has their means and maxima, so that a day adds less than a megabyte.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import structlog

from engine.errors import TrainyardError
from engine.events.delivery.sink import EventSink
from engine.events.system import MAX_GPUS, GpuRecord, SystemSampled
from engine.processes.disk import folder_bytes
from engine.processes.usage import (
    GpuUsage,
    MachineUsage,
    TreeUsage,
    gpu_usage,
    machine_usage,
    tree_usage,
)

SAMPLE_S = 10.0
DETAILED_S = 3600.0
"""Part of an attempt in which every measurement is reported, seconds."""
REPORT_S = 60.0
"""Interval between later reports, and between measurements of the folder, seconds."""

log = structlog.get_logger("orchestrator")


@dataclass(frozen=True, slots=True)
class _Sample:
    time: float
    """Monotonic time, seconds."""
    tree: TreeUsage
    machine: MachineUsage
    gpus: Sequence[GpuUsage]


class SystemSampler:
    """Thread that reports the use of the machine until the context ends.

    Args:
        folder: the run's folder.
        sink: receives the events.
    """

    def __init__(self, folder: Path, sink: EventSink) -> None:
        self._folder, self._sink = folder, sink
        self._closed = threading.Event()
        self._emitting = threading.Lock()
        self._cores = os.cpu_count() or 1
        self._gpus_readable = True
        self._folder_bytes, self._folder_at = 0, -REPORT_S

    def __enter__(self) -> Self:
        threading.Thread(target=self._loop, name="system-sampler", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        with self._emitting:  # nothing may follow the run's last event
            pass

    def _loop(self) -> None:
        started, pause, readable = time.monotonic(), 0.0, True
        first: _Sample | None = None
        samples: list[_Sample] = []
        while not self._closed.wait(pause):
            pause = SAMPLE_S
            try:
                sample = self._sample()
                samples.append(sample)
                begin = first or sample
                age, period = sample.time - started, sample.time - begin.time
                if first is None or age <= DETAILED_S or period >= REPORT_S - SAMPLE_S / 2:
                    reported, first, samples = samples, sample, []
                    if begin is not sample:
                        self._report(begin, reported)
                readable = True
            except Exception as error:  # a run must not end because its machine cannot be measured
                if readable:  # the log names it once, not every ten seconds
                    log.warning("system_not_sampled", reason=str(error))
                readable = False

    def _sample(self) -> _Sample:
        return _Sample(time.monotonic(), tree_usage(os.getpid()), machine_usage(), self._gpus())

    def _gpus(self) -> list[GpuUsage]:
        try:
            gpus = gpu_usage()[:MAX_GPUS]
        except (OSError, subprocess.SubprocessError) as error:
            if self._gpus_readable:  # the log names it once, not every ten seconds
                log.warning("gpus_not_sampled", reason=str(error))
            self._gpus_readable = False
            return []
        self._gpus_readable = True
        return gpus

    def _report(self, first: _Sample, samples: Sequence[_Sample]) -> None:
        last = samples[-1]
        if last.time - self._folder_at >= REPORT_S:
            self._folder_bytes, self._folder_at = folder_bytes(self._folder), last.time
        fields = usage_between(first, samples) | {
            "cores": self._cores,
            "folder": self._folder_bytes,
            "disk_free": shutil.disk_usage(self._folder).free,
        }
        with self._emitting:
            if self._closed.is_set():
                return
            try:
                self._sink.emit(SystemSampled, **fields)
            except (OSError, TrainyardError) as error:
                log.warning("system_not_reported", reason=str(error))


def usage_between(first: _Sample, samples: Sequence[_Sample]) -> dict[str, object]:
    """Return the fields of an event from the measurements since the previous event's last one."""
    last = samples[-1]
    seconds = max(last.time - first.time, 1e-3)

    def rate(total: float) -> float:
        return round(max(total, 0.0) / seconds, 3)

    return {
        "seconds": round(seconds, 1),
        "cpu_engine": rate(last.tree.cpu_s - first.tree.cpu_s),
        "cpu_children": rate(last.tree.children_cpu_s - first.tree.children_cpu_s),
        "cpu_machine": rate(last.machine.cpu_s - first.machine.cpu_s),
        "memory_engine": max(sample.tree.memory for sample in samples),
        "memory_children": max(sample.tree.children_memory for sample in samples),
        "memory_machine": max(sample.machine.memory for sample in samples),
        "memory_total": last.machine.memory_total,
        "processes": max(sample.tree.children for sample in samples),
        "gpus": [record.model_dump() for record in _gpu_records(samples)],
    }


def _gpu_records(samples: Sequence[_Sample]) -> list[GpuRecord]:
    by_index: dict[int, list[GpuUsage]] = {}
    for sample in samples:
        for gpu in sample.gpus:
            by_index.setdefault(gpu.index, []).append(gpu)
    return [
        GpuRecord(
            index=index,
            use=round(sum(gpu.use for gpu in gpus) / len(gpus), 3),
            memory=max(gpu.memory for gpu in gpus),
            memory_total=gpus[-1].memory_total,
        )
        for index, gpus in sorted(by_index.items())
    ]
