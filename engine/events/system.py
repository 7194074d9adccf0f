"""Use of processor, memory, disk and GPUs by a run, in its events."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, FiniteFloat

from engine.events.record import BigInt, Int, Record, RunEvent

MAX_GPUS = 64
"""Maximum number of GPUs in one report."""


class GpuRecord(Record):
    """Use of one GPU of the machine, by all processes."""

    index: Int = Field(ge=0)
    use: FiniteFloat
    """Share of the time in which a kernel was running, averaged over the period."""
    memory: BigInt
    """Used memory, bytes."""
    memory_total: BigInt


class SystemSampled(RunEvent):
    """Use of the machine since the previous event of this type: means of rates, maxima of amounts.

    The children are the descendants of the engine's process on its machine. Their memory is the sum of their
    resident memory, in which shared pages count once per process.
    """

    type: Literal["system_sampled"] = "system_sampled"
    seconds: FiniteFloat = Field(ge=0)
    """Length of the period."""
    cores: Int
    """Processors of the machine."""
    cpu_engine: FiniteFloat
    """Processors in use by the engine's process."""
    cpu_children: FiniteFloat
    cpu_machine: FiniteFloat
    """Processors in use by all processes of the machine."""
    memory_engine: BigInt
    """Bytes."""
    memory_children: BigInt
    memory_machine: BigInt
    """Memory of the machine that is not available to new processes, bytes."""
    memory_total: BigInt
    processes: Int
    """Number of children."""
    folder: BigInt
    """Disk space of the run's folder, bytes."""
    disk_free: BigInt
    """Free space on the folder's disk, bytes."""
    gpus: list[GpuRecord] = Field(default_factory=list, max_length=MAX_GPUS)
