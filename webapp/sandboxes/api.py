"""Sandbox pool: the data of the page, and reaping on request."""

from __future__ import annotations

from datetime import datetime

from django.http import HttpRequest
from ninja import Router, Schema

from webapp.api.auth import caller, operator, viewer
from webapp.runs.api.runs import find
from webapp.sandboxes import services as sandboxes
from webapp.sandboxes.contexts import PoolView, pool_view

router = Router(tags=["sandboxes"])


class TotalsOut(Schema):
    """Sums over pools."""

    wanted: int
    waiting: int
    starting: int
    live: int
    idle: int
    max_live: int
    opened: int
    failed: int


class PoolOut(Schema):
    """Sandbox pool of one run."""

    run_id: int
    time: datetime
    backend: str
    wanted: int
    waiting: int
    starting: int
    live: int
    idle: int
    max_live: int
    max_starting: int
    opened: int
    orphans: int
    failures: dict[str, int]
    nodes: dict[str, int]
    paused_reason: str
    blocked: dict[str, int]


class ImageOut(Schema):
    """Image whose sandboxes fail to start."""

    run_id: int
    image: str
    failures: int
    reason: str
    refused: bool


class ClockOut(Schema):
    """Statistics of one kind of duration, seconds; null if nothing was measured."""

    name: str
    count: int
    mean: float | None
    median: float | None
    p99: float | None


class FailureOut(Schema):
    """One kind of failure, with its remedy."""

    kind: str
    name: str
    remedy: str
    count: int


class SandboxOut(Schema):
    """One sandbox lease."""

    run_id: int
    lease: str
    state: str
    name: str
    image: str
    sandbox_id: str
    node: str
    warm: bool
    queue_seconds: float
    pull_seconds: float
    start_seconds: float
    leased_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    failure: str
    reason: str


class ReaperOut(Schema):
    """Results of reaping one backend so far."""

    backend: str
    checked_at: datetime
    removed: int
    last_removed: int
    last_removed_at: datetime | None
    error: str


class ViewOut(Schema):
    """Sandbox pools of all live runs, or of one run."""

    as_of: datetime | None
    totals: TotalsOut
    pools: list[PoolOut]
    images: list[ImageOut]
    clocks: list[ClockOut]
    nodes: dict[str, int]
    failures: list[FailureOut]
    sandboxes: list[SandboxOut]
    num_sandboxes: int
    """Number of open sandboxes; the list contains the oldest ones."""
    failed: list[SandboxOut]
    num_failed: int
    reapers: list[ReaperOut]
    orphans: int

    @staticmethod
    def resolve_sandboxes(view: PoolView) -> list[object]:
        """Return the sandboxes without the page's links."""
        return [row.sandbox for row in view.sandboxes]

    @staticmethod
    def resolve_nodes(view: PoolView) -> dict[str, int]:
        """Return the number of sandboxes by node."""
        return dict(view.nodes)


class AskedOut(Schema):
    """Confirmation of a request."""

    detail: str


@router.get("/pool", auth=viewer, response=ViewOut)
def get_pool(request: HttpRequest, run: int | None = None) -> PoolView:
    """Return the sandbox pools of all live runs, or of one run in any state."""
    return pool_view(find(run).pk if run is not None else None)


@router.post("/pool/reap", auth=operator, response={202: AskedOut})
def reap(request: HttpRequest) -> tuple[int, AskedOut]:
    """Ask a worker to remove orphaned sandboxes now; the results appear in ``reapers`` of the pool."""
    sandboxes.request_reaping(actor=caller(request))
    return 202, AskedOut(detail="a worker was asked to reap")
