"""Measurement of the processor time and memory of a process tree and its machine, and of GPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_GPU_QUERY = ("--query-gpu=index,utilization.gpu,memory.used,memory.total", "--format=csv,noheader,nounits")
_GPU_TIMEOUT_S = 5.0
_BUSY_STATES = (0, 1, 2, 5, 6, 7)
"""Columns of ``/proc/stat`` that count busy time: user, nice, system, irq, softirq, steal."""


@dataclass(frozen=True, slots=True)
class TreeUsage:
    """Use of a process and of its descendants; times are totals since they began, seconds."""

    cpu_s: float
    memory: int
    """Resident memory, bytes."""
    children_cpu_s: float
    """Includes descendants that have ended and were waited for."""
    children_memory: int
    children: int


@dataclass(frozen=True, slots=True)
class MachineUsage:
    """Use of the machine by all processes."""

    cpu_s: float
    """Busy time of all processors since boot, seconds."""
    memory: int
    """Memory that is not available to new processes, bytes."""
    memory_total: int


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """Use of one GPU; memory in bytes."""

    index: int
    use: float
    memory: int
    memory_total: int


@dataclass(frozen=True, slots=True)
class _Process:
    parent: int
    own_ticks: int
    ended_ticks: int
    """Time of descendants that ended and were waited for."""
    pages: int


def tree_usage(pid: int) -> TreeUsage:
    """Return the use of a process and its descendants; zeros after it has ended."""
    processes: dict[int, _Process] = {}
    with os.scandir(_PROC) as entries:
        for name in (entry.name for entry in entries if entry.name.isdecimal()):
            if (process := _process(name)) is not None:
                processes[int(name)] = process
    children: dict[int, list[int]] = {}
    for number, process in processes.items():
        children.setdefault(process.parent, []).append(number)
    own = processes.get(pid, _Process(0, 0, 0, 0))
    ticks, pages, count, pending = own.ended_ticks, 0, 0, children.get(pid, [])[:]
    while pending:
        number = pending.pop()
        process = processes[number]
        ticks += process.own_ticks + process.ended_ticks
        pages += process.pages
        count += 1
        pending += children.get(number, ())
    return TreeUsage(
        cpu_s=own.own_ticks / _TICKS_PER_S,
        memory=own.pages * _PAGE_BYTES,
        children_cpu_s=ticks / _TICKS_PER_S,
        children_memory=pages * _PAGE_BYTES,
        children=count,
    )


def machine_usage() -> MachineUsage:
    """Return the use of the machine by all processes. Raises OSError."""
    ticks = [int(value) for value in (_PROC / "stat").read_text().partition("\n")[0].split()[1:]]
    memory = {
        name: int(rest.split()[0]) * 1024
        for name, _, rest in (
            line.partition(":") for line in (_PROC / "meminfo").read_text().splitlines() if ":" in line
        )
    }
    total = memory["MemTotal"]
    return MachineUsage(
        cpu_s=sum(ticks[column] for column in _BUSY_STATES) / _TICKS_PER_S,
        memory=total - memory.get("MemAvailable", memory["MemFree"]),
        memory_total=total,
    )


def gpu_usage() -> list[GpuUsage]:
    """Return the use of the machine's GPUs, as ``nvidia-smi`` reports it; empty without the program.

    Raises:
        OSError, subprocess.SubprocessError: the program failed, or took too long.
    """
    if (program := shutil.which("nvidia-smi")) is None:
        return []
    printed = subprocess.run(
        [program, *_GPU_QUERY], capture_output=True, text=True, check=True, timeout=_GPU_TIMEOUT_S
    ).stdout
    gpus = []
    for line in printed.splitlines():
        with suppress(ValueError):  # "[N/A]", where a GPU or a partition of one does not report it
            index, use, memory, total = (int(field) for field in line.split(","))
            gpus.append(GpuUsage(index, use / 100, memory << 20, total << 20))
    return gpus


def _process(name: str) -> _Process | None:
    """Read one process; None if it has ended."""
    try:
        # A process chooses the name within the parentheses, which may contain any character.
        fields = (_PROC / name / "stat").read_bytes().rpartition(b")")[2].split()
        return _Process(
            parent=int(fields[1]),
            own_ticks=int(fields[11]) + int(fields[12]),
            ended_ticks=int(fields[13]) + int(fields[14]),
            pages=int(fields[21]),
        )
    except (OSError, IndexError, ValueError):
        return None
