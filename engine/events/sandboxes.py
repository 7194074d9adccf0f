"""What a run's events tell about its sandboxes: single leases, and the pool at one moment."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from engine.events.record import Record, RunEvent


class SandboxRecord(Record):
    """All that is known of one lease; a later record of the same lease replaces it."""

    lease: str = Field(min_length=1, max_length=64)
    state: Literal["leased", "started", "closed", "failed"]
    """``leased`` is written before the sandbox exists; ``failed`` also when it failed in use."""
    name: str = ""
    """What it is for, e.g. a rollout's key."""
    lane: str = ""
    image: str
    backend: str
    sandbox_id: str = ""
    node: str = ""
    warm: bool = False
    queue_seconds: float = 0.0
    pull_seconds: float = 0.0
    start_seconds: float = 0.0
    leased_at: float
    started_at: float | None = None
    ended_at: float | None = None
    """Unix times, seconds."""
    failure: str = ""
    """Kind of failure, see ``engine.events.failures``."""
    reason: str = ""


class SandboxesChanged(RunEvent):
    """Leases that began or changed since the last such event."""

    type: Literal["sandboxes_changed"] = "sandboxes_changed"
    records: list[SandboxRecord]


CLOCKS = ("queue", "pull", "start", "exec", "grade")
"""What a sandbox's time goes into: waiting for a place, fetching the image, starting, one action of an agent,
grading one trajectory."""
CLOCK_BOUNDS_S = (
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0, 600.0, 1800.0,
)  # fmt: skip
"""Upper bounds of the buckets of ``ClockRecord.counts``, seconds; the last bucket has none."""


class ClockRecord(Record):
    """A histogram of durations over an attempt."""

    counts: list[int] = Field(min_length=len(CLOCK_BOUNDS_S) + 1, max_length=len(CLOCK_BOUNDS_S) + 1)
    """Durations in each bucket, not cumulative."""
    total: float
    """Their sum, seconds."""


class ImageTrouble(Record):
    """An image whose starts fail."""

    image: str
    failures: int
    reason: str
    refused: bool
    """Further sandboxes of it fail at once."""


class PoolStatus(RunEvent):
    """The sandbox pool of an attempt at one moment; sent every few seconds while something changes."""

    type: Literal["pool_status"] = "pool_status"
    backend: str
    wanted: int
    """Sandboxes somebody holds or waits for."""
    waiting: int
    starting: int
    live: int
    """Started and in somebody's hands."""
    idle: int = 0
    """Started before anybody asked."""
    max_live: int
    max_starting: int
    opened: int
    """Leases since the attempt began."""
    failures: dict[str, int] = Field(default_factory=dict)
    """Kind of failure → how often in this attempt, in use included."""
    images: list[ImageTrouble] = Field(default_factory=list)
    nodes: dict[str, int] = Field(default_factory=dict)
    """Node → sandboxes on it."""
    clocks: dict[str, ClockRecord] = Field(default_factory=dict)
    orphans: int = 0
    """Left behind by earlier attempts and removed when this one began."""
    paused_reason: str = ""
    """Why no sandbox is started for now; empty while they are."""
    blocked: dict[str, int] = Field(default_factory=dict)
    """Why sandboxes that are being started do not come up yet, in the backend's words → how many."""
