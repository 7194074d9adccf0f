"""Metrics for Prometheus, read from Postgres at every scrape; no process keeps counters.

Counters and histograms of a pool belong to a run's newest attempt and begin at 0 with the next attempt, which
Prometheus treats as a restart. Label values are live runs, their nodes and fixed lists, never free text of an
engine, to limit the number of series. To add a metric, add a family to one of the functions that
``_Collector.collect`` calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from django.db.models import Count
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.events.failures import POLICIES
from engine.events.sandboxes import CLOCK_BOUNDS_S, CLOCKS
from engine.types import RunState
from webapp.runs.models.runs import Run
from webapp.sandboxes import selectors as reads
from webapp.sandboxes.models import Pool


def exposition() -> bytes:
    """Return the current metrics in Prometheus's text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector())
    return generate_latest(registry)


class _Collector(Collector):
    def collect(self) -> Iterable[Metric]:
        pools = reads.pools()
        yield from _runs()
        yield from _pools(pools)
        yield from _totals(pools)
        yield from _clocks(pools)
        yield from _ingest()


def _runs() -> Iterator[Metric]:
    counts = dict(Run.objects.order_by().values_list("state").annotate(n=Count("pk")))
    runs = GaugeMetricFamily("trainyard_runs", "Runs by state.", labels=["state"])
    for state in RunState:
        runs.add_metric([state.value], counts.get(state.value, 0))
    yield runs


def _pools(pools: Sequence[Pool]) -> Iterator[Metric]:
    sandboxes = GaugeMetricFamily(
        "trainyard_sandboxes",
        "Sandboxes of live runs by state: wanted counts leased and requested ones.",
        labels=["run", "backend", "state"],
    )
    nodes = GaugeMetricFamily("trainyard_sandbox_node", "Sandboxes by node.", labels=["run", "node"])
    limit = GaugeMetricFamily(
        "trainyard_sandboxes_limit", "Maximum concurrent sandboxes of a run.", labels=["run"]
    )
    paused = GaugeMetricFamily(
        "trainyard_sandbox_pool_paused", "1 while a pool starts no sandboxes.", labels=["run"]
    )
    images = GaugeMetricFamily(
        "trainyard_sandbox_images_refused", "Images refused for sandbox starts.", labels=["run"]
    )
    blocked = GaugeMetricFamily(
        "trainyard_sandboxes_blocked", "Sandboxes whose start the backend reports as blocked.", labels=["run"]
    )
    for pool in pools:
        run = str(pool.run_id)
        for state in ("wanted", "waiting", "starting", "live", "idle"):
            sandboxes.add_metric([run, pool.backend, state], getattr(pool, state))
        for node, count in pool.nodes.items():
            nodes.add_metric([run, node], count)
        limit.add_metric([run], pool.max_live)
        paused.add_metric([run], bool(pool.paused_reason))
        blocked.add_metric([run], sum(pool.blocked.values()))
        images.add_metric([run], sum(image["refused"] for image in pool.images))
    yield from (sandboxes, nodes, limit, paused, blocked, images)


def _totals(pools: Sequence[Pool]) -> Iterator[Metric]:
    leases = CounterMetricFamily("trainyard_sandbox_leases", "Sandbox leases granted.", labels=["run"])
    failures = CounterMetricFamily(
        "trainyard_sandbox_failures", "Sandbox failures by kind, in use included.", labels=["run", "kind"]
    )
    for pool in pools:
        leases.add_metric([str(pool.run_id)], pool.opened)
        kinds: Counter[str] = Counter()
        for kind, count in pool.failures.items():
            kinds[kind if kind in POLICIES else "infrastructure"] += count
        for kind, count in kinds.items():
            failures.add_metric([str(pool.run_id), kind], count)
    reaped = CounterMetricFamily(
        "trainyard_sandbox_orphans_reaped", "Orphans the reaper removed.", labels=["backend"]
    )
    trouble = GaugeMetricFamily(
        "trainyard_sandbox_reaper_failing", "1 when the last reaping of a backend failed.", labels=["backend"]
    )
    for reaper in reads.reapers():
        reaped.add_metric([reaper.backend], reaper.removed)
        trouble.add_metric([reaper.backend], bool(reaper.error))
    yield from (leases, failures, reaped, trouble)


def _clocks(pools: Sequence[Pool]) -> Iterator[Metric]:
    family = HistogramMetricFamily(
        "trainyard_sandbox_seconds",
        "Sandbox time by stage: queue, image pull, start, one action, one grading.",
        labels=["run", "clock"],
    )
    bounds = [*(f"{bound:g}" for bound in CLOCK_BOUNDS_S), "+Inf"]
    for pool in pools:
        for name in CLOCKS:
            if (record := pool.clocks.get(name)) is None:
                continue
            below, buckets = 0, []
            for bound, count in zip(bounds, record["counts"], strict=True):
                below += count
                buckets.append((bound, below))
            family.add_metric([str(pool.run_id), name], buckets=buckets, sum_value=record["total"])
    yield family


def _ingest() -> Iterator[Metric]:
    events = GaugeMetricFamily(
        "trainyard_ingest_lag_events", "Events written by the engine and not yet ingested.", labels=["run"]
    )
    seconds = GaugeMetricFamily(
        "trainyard_ingest_lag_seconds", "Age of the newest stored event while any is missing.", labels=["run"]
    )
    heartbeat = GaugeMetricFamily(
        "trainyard_heartbeat_age_seconds", "Seconds since a live run's last heartbeat.", labels=["run"]
    )
    for lag in reads.ingest_lags():
        events.add_metric([str(lag.run_id)], lag.events)
        seconds.add_metric([str(lag.run_id)], lag.seconds)
        if lag.heartbeat_age is not None:
            heartbeat.add_metric([str(lag.run_id)], lag.heartbeat_age)
    yield from (events, seconds, heartbeat)
