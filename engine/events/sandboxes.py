"""Sandbox data in a run's events: single leases, and the state of the pool."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from engine.events.record import BigInt, Int, Record, RunEvent, Time


class SandboxRecord(Record):
    """Complete state of one lease; a later record of the same lease replaces it."""

    lease: str = Field(min_length=1, max_length=64)
    state: Literal["leased", "started", "closed", "failed"]
    """``leased`` is written before the sandbox exists; ``failed`` also when it failed in use."""
    name: str = ""
    """Purpose of the sandbox, e.g. a rollout's key."""
    lane: str = ""
    image: str
    backend: str
    sandbox_id: str = ""
    node: str = ""
    warm: bool = False
    queue_seconds: float = 0.0
    pull_seconds: float = 0.0
    start_seconds: float = 0.0
    leased_at: Time
    started_at: Time | None = None
    ended_at: Time | None = None
    failure: str = ""
    """Kind of failure, see ``engine.events.failures``."""
    reason: str = ""


class SandboxesChanged(RunEvent):
    """Leases that began or changed since the previous event of this type."""

    type: Literal["sandboxes_changed"] = "sandboxes_changed"
    records: list[SandboxRecord]


CLOCKS = ("queue", "pull", "start", "exec", "grade")
"""Measured phases of a sandbox: waiting for a place, pulling the image, starting, one action of an agent,
grading one trajectory."""
CLOCK_BOUNDS_S = (
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0, 600.0, 1800.0,
)  # fmt: skip
"""Upper bounds of the buckets of ``ClockRecord.counts``, seconds; the last bucket has none."""


class ClockRecord(Record):
    """Histogram of durations over an attempt."""

    counts: list[Int] = Field(min_length=len(CLOCK_BOUNDS_S) + 1, max_length=len(CLOCK_BOUNDS_S) + 1)
    """Durations in each bucket, not cumulative."""
    total: float
    """Sum of the durations, seconds."""


class ImageTrouble(Record):
    """An image whose sandboxes fail to start."""

    image: str
    failures: Int
    reason: str
    refused: bool
    """Whether further sandboxes of the image are rejected at once."""


class PoolStatus(RunEvent):
    """State of an attempt's sandbox pool; sent every few seconds while it changes."""

    type: Literal["pool_status"] = "pool_status"
    backend: str
    wanted: Int
    """Number of sandboxes held or waited for."""
    waiting: Int
    starting: Int
    live: Int
    """Number of started sandboxes in use."""
    idle: Int = 0
    """Number of sandboxes started ahead of demand."""
    max_live: Int
    max_starting: Int
    opened: BigInt
    """Number of leases since the attempt began."""
    failures: dict[str, Int] = Field(default_factory=dict)
    """Kind of failure → number in this attempt, failures in use included."""
    images: list[ImageTrouble] = Field(default_factory=list)
    nodes: dict[str, Int] = Field(default_factory=dict)
    """Node → number of its sandboxes."""
    clocks: dict[str, ClockRecord] = Field(default_factory=dict)
    orphans: Int = 0
    """Number of sandboxes left behind by earlier attempts and removed when this one began."""
    paused_reason: str = ""
    """Reason why no sandboxes are started at present; empty while they are."""
    blocked: dict[str, Int] = Field(default_factory=dict)
    """Reason, in the backend's words, why starting sandboxes are delayed → their number."""
