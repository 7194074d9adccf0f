"""Sandbox pools of all live runs or of one run, for the pool page and for a tab of a run's page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.urls import reverse

from engine.events.failures import policy_of
from engine.events.sandboxes import CLOCK_BOUNDS_S, CLOCKS
from webapp.core.contexts.charts import ChartSet, ChartSpec, Series
from webapp.core.contexts.frame import Crumb, trajectory_url
from webapp.core.contexts.numbers import MOST_ID, whole
from webapp.runs.models.runs import Run
from webapp.runs.selectors import runs as run_reads
from webapp.sandboxes import selectors as reads
from webapp.sandboxes.models import Pool, Reaper, Sandbox
from webapp.sandboxes.selectors import LiveSandbox, PoolPoint

CLOCK_LABELS = {
    "queue": ("Queue", "from request to admission"),
    "pull": ("Image pull", "only for missing images"),
    "start": ("Start", "from admission to the agent's greeting, image pull excluded"),
    "exec": ("Command", "one command of an agent"),
    "grade": ("Grading", "one trajectory, its own sandbox included"),
}
_CHARTS = (
    ChartSpec(
        "sandboxes",
        "Sandboxes",
        "at once",
        (
            Series("wanted", "wanted", 6),
            Series("live", "live", 1),
            Series("starting", "starting", 5),
            Series("idle", "idle", 8),
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Bar:
    """Bar of a histogram: count of a bucket, and height in per cent of the tallest bar."""

    label: str
    count: int
    height: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockView:
    """Histogram of one kind of duration with its summary; quantiles are interpolated within a bucket."""

    name: str
    label: str
    help: str
    count: int
    mean: float | None
    median: float | None
    p99: float | None
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums over pools; the limits of pools on the same machine add up because each run has its own."""

    wanted: int
    waiting: int
    starting: int
    live: int
    idle: int
    max_live: int
    opened: int
    failed: int


@dataclass(frozen=True, slots=True)
class ImageRow:
    """Image whose sandboxes fail to start."""

    run_id: int
    image: str
    failures: int
    reason: str
    refused: bool


@dataclass(frozen=True, slots=True)
class FailureRow:
    """One kind of failure, summed over the shown pools."""

    kind: str
    name: str
    remedy: str
    count: int


@dataclass(frozen=True, slots=True)
class SandboxRow:
    """Open lease, with the URL of its rollout; empty if the rollout has not started."""

    sandbox: Sandbox
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """Sandbox pools as shown by page, run tab, API and command."""

    as_of: datetime | None
    """Time of the newest snapshot; None if no pool has reported."""
    totals: Totals
    pools: tuple[Pool, ...]
    paused: tuple[Pool, ...]
    blocked: tuple[tuple[str, int], ...]
    """Reasons for delayed starts, with the number of sandboxes."""
    images: tuple[ImageRow, ...]
    clocks: tuple[ClockView, ...]
    nodes: tuple[tuple[str, int], ...]
    failures: tuple[FailureRow, ...]
    sandboxes: tuple[SandboxRow, ...]
    num_sandboxes: int
    failed: tuple[Sandbox, ...]
    num_failed: int
    reapers: tuple[Reaper, ...]
    orphans: int
    """Number of orphans removed by the reaper and at the start of the shown attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolContext:
    """Page of sandbox pools."""

    section: str
    crumbs: tuple[Crumb, ...]
    view: PoolView
    charts: Mapping[str, object]
    run: Run | None
    """The only run shown; None for all live runs."""
    runs: tuple[tuple[int, str], ...]
    can_operate: bool


def build_pool(params: Mapping[str, str], *, can_operate: bool) -> PoolContext:
    """Return the page of all live pools, or of one run's pool with ``?run=``."""
    run_id = whole(params.get("run", ""), most=MOST_ID)
    run = run_reads.get_run(run_id) if run_id is not None else None
    view = pool_view(run.pk if run else None)
    alive = {pool.run_id: pool.run.name for pool in reads.pools()}
    crumbs = (Crumb("Sandboxes", reverse("sandbox-list") if run else ""),)
    return PoolContext(
        section="sandboxes",
        crumbs=(*crumbs, Crumb(f"run {run.pk}")) if run else crumbs,
        view=view,
        charts=history_chart(reads.pool_history([pool.run_id for pool in view.pools[:20]])).as_json(),
        run=run,
        runs=tuple((alive | ({run.pk: run.name} if run else {})).items()),
        can_operate=can_operate,
    )


def pool_view(run_id: int | None = None) -> PoolView:
    """Return the pools of all live runs, or of one run in any state, with a fixed number of queries."""
    pools = reads.pools(run_id)
    live, num_live = reads.open_sandboxes(run_id)
    failed, num_failed = reads.failed_sandboxes(run_id)
    reapers = reads.reapers() if run_id is None else []
    return PoolView(
        as_of=max((pool.time for pool in pools), default=None),
        totals=_totals(pools),
        pools=tuple(pools),
        paused=tuple(pool for pool in pools if pool.paused_reason),
        blocked=_counted(pool.blocked for pool in pools),
        images=_images(pools),
        clocks=_clocks(pools),
        nodes=_counted(pool.nodes for pool in pools),
        failures=_failures(pools),
        sandboxes=tuple(_row(sandbox) for sandbox in live),
        num_sandboxes=num_live,
        failed=tuple(failed),
        num_failed=num_failed,
        reapers=tuple(reapers),
        orphans=sum(pool.orphans for pool in pools) + sum(reaper.removed for reaper in reapers),
    )


def _totals(pools: Sequence[Pool]) -> Totals:
    names = ("wanted", "waiting", "starting", "live", "idle", "max_live", "opened")
    sums = {name: sum(getattr(pool, name) for pool in pools) for name in names}
    return Totals(**sums, failed=sum(sum(pool.failures.values()) for pool in pools))


def _images(pools: Sequence[Pool]) -> tuple[ImageRow, ...]:
    rows = [
        ImageRow(pool.run_id, image["image"], image["failures"], image["reason"], image["refused"])
        for pool in pools
        for image in pool.images
    ]
    return tuple(sorted(rows, key=lambda row: (-row.failures, row.image)))


def _counted(tables: Iterable[Mapping[str, int]]) -> tuple[tuple[str, int], ...]:
    """Return sums over dictionaries of counts, largest first."""
    total: Counter[str] = Counter()
    for table in tables:
        total.update(table)
    return tuple(sorted(total.items(), key=lambda item: (-item[1], item[0])))


def _failures(pools: Sequence[Pool]) -> tuple[FailureRow, ...]:
    return tuple(
        FailureRow(kind, policy_of(kind).name, policy_of(kind).remedy, count)
        for kind, count in _counted(pool.failures for pool in pools)
    )


def _row(live: LiveSandbox) -> SandboxRow:
    if not live.task_key:
        return SandboxRow(live.sandbox, "")
    where = (live.phase, live.iteration, live.task_key, live.index)
    return SandboxRow(live.sandbox, trajectory_url(live.sandbox.run_id, *where))


def _clocks(pools: Sequence[Pool]) -> tuple[ClockView, ...]:
    """Return histograms summed over all pools, in the order of a rollout's phases."""
    views = []
    for name in CLOCKS:
        records = [pool.clocks[name] for pool in pools if name in pool.clocks]
        counts = [sum(column) for column in zip(*(record["counts"] for record in records), strict=True)]
        views.append(clock_view(name, counts, sum(record["total"] for record in records)))
    return tuple(views)


def clock_view(name: str, counts: Sequence[int], total: float) -> ClockView:
    """Return a histogram as bars, from the first to the last non-empty bucket."""
    used = [i for i, count in enumerate(counts) if count]
    tallest = max(counts, default=0)
    shown = range(used[0], used[-1] + 1) if used else range(0)
    count = sum(counts)
    label, explanation = CLOCK_LABELS[name]
    return ClockView(
        name=name,
        label=label,
        help=explanation,
        count=count,
        mean=total / count if count else None,
        median=quantile(counts, 0.5),
        p99=quantile(counts, 0.99),
        bars=tuple(Bar(_bucket(i), counts[i], 100 * counts[i] / tallest) for i in shown),
    )


def quantile(counts: Sequence[int], share: float) -> float | None:
    """Return a quantile of the durations, seconds; for the last, unbounded bucket its lower bound."""
    rank = share * sum(counts)
    below = 0
    for i, count in enumerate(counts):
        if count and below + count >= rank:
            low = CLOCK_BOUNDS_S[i - 1] if i else 0.0
            high = CLOCK_BOUNDS_S[i] if i < len(CLOCK_BOUNDS_S) else low
            return low + (high - low) * (rank - below) / count
        below += count
    return None


def _bucket(i: int) -> str:
    if i == len(CLOCK_BOUNDS_S):
        return f"over {_short(CLOCK_BOUNDS_S[-1])}"
    return f"up to {_short(CLOCK_BOUNDS_S[i])}"


def _short(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:g} ms"
    return f"{seconds:g} s" if seconds < 60 else f"{seconds / 60:g} min"


def history_chart(points: Sequence[PoolPoint]) -> ChartSet:
    """Return sums over runs at the time of every report; other runs count with their last report."""
    last: dict[int, PoolPoint] = {}
    sums: dict[float, dict[str, float | None]] = {}
    names = [series.key for series in _CHARTS[0].series]
    for point in points:
        last[point.run_id] = point
        sums[point.time] = {name: float(sum(getattr(p, name) for p in last.values())) for name in names}
    columns = {name: [values[name] for values in sums.values()] for name in names}
    if not any(value for value in columns["idle"]):
        columns.pop("idle")
    spec = _CHARTS[0]
    drawn = tuple(series for series in spec.series if series.key in columns)
    specs = (ChartSpec(spec.id, spec.title, spec.unit, drawn),)
    return ChartSet(specs, list(sums), columns, x_label="time", time=True)
