"""Inference engines of a run: their state and load now, and their load over time as small charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from webapp.core.contexts.line_charts import LineChart, line_chart
from webapp.runs.models.engines import EngineReport, EngineSample
from webapp.runs.models.runs import Run
from webapp.runs.selectors import engines as reads
from webapp.runs.services.states import LIVE

_COLOURS = 8
_MARKS = {"ready": "passed", "left_out": "failed", "starting": "starting", "publishing": "running"}
_CHARTS = (
    ("kv_use", "KV cache use", "share of the cache", 1.0),
    ("running", "Running requests", "requests", None),
    ("waiting", "Waiting requests", "requests in engines", None),
    ("tokens_per_s", "Throughput", "generated tokens per second", None),
    ("prefix_hit_rate", "Prefix cache hit rate", "share of prompt tokens", 1.0),
)
"""Field of a replica's record, title, unit, and the fixed top of the y axis."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One engine as last reported."""

    name: str
    state: str
    chip: str
    """Class of the state's chip."""
    colour: int
    record: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginesView:
    """Engines of a run."""

    replicas: tuple[Replica, ...]
    reported_at: datetime | None
    current: bool
    """Whether the run is live; else the report is the last one before its end."""
    queued: int
    ready: int
    left_out: tuple[Replica, ...]
    charts: tuple[LineChart, ...]
    since: datetime | None
    """Time at the left end of the charts."""
    until: datetime | None
    """Time at the right end of the charts."""


@dataclass(frozen=True, slots=True)
class EngineSummary:
    """Number of engines, for the header of the run."""

    ready: int
    total: int
    left_out: int


def engine_summary(run: Run) -> EngineSummary | None:
    """Return the number of ready engines of a live run; None without a report."""
    report = reads.newest_report(run.pk) if run.state in LIVE else None
    if report is None:
        return None
    states = [replica["state"] for replica in report.replicas]
    serving = sum(state in ("ready", "publishing") for state in states)
    return EngineSummary(serving, len(states), states.count("left_out"))


def build_engines(run: Run) -> EnginesView:
    """Return the engines of a run."""
    report, samples = reads.newest_report(run.pk), reads.history(run.pk)
    moments: list[EngineSample | EngineReport] = list(samples)
    if report is not None and (not samples or report.time > samples[-1].time):
        moments.append(report)
    records = [record for moment in (*moments, *filter(None, [report])) for record in moment.replicas]
    names = sorted({str(record["name"]) for record in records})
    colours = {name: 1 + position % _COLOURS for position, name in enumerate(names)}
    replicas = tuple(_replica(record, colours) for record in (report.replicas if report else ()))
    return EnginesView(
        replicas=replicas,
        reported_at=report.time if report else None,
        current=run.state in LIVE,
        queued=report.queued if report else 0,
        ready=sum(replica.state in ("ready", "publishing") for replica in replicas),
        left_out=tuple(replica for replica in replicas if replica.state == "left_out"),
        charts=_charts(moments, colours),
        since=moments[0].time if moments else None,
        until=moments[-1].time if moments else None,
    )


def _replica(record: Mapping[str, Any], colours: Mapping[str, int]) -> Replica:
    name, state = str(record["name"]), str(record["state"])
    return Replica(name, state, _MARKS.get(state, "warning"), colours[name], record)


def _charts(
    moments: Sequence[EngineSample | EngineReport], colours: Mapping[str, int]
) -> tuple[LineChart, ...]:
    """Return the charts; none if there are fewer than two moments to show."""
    if len(moments) < 2:
        return ()
    start, end = moments[0].time.timestamp(), moments[-1].time.timestamp()
    points: dict[str, list[tuple[float, Mapping[str, Any]]]] = {name: [] for name in colours}
    for moment in moments:
        x = (moment.time.timestamp() - start) / ((end - start) or 1.0)
        for record in moment.replicas:
            points[str(record["name"])].append((x, record))
    return tuple(
        line_chart(field, title, unit, _values(points, field), colours=colours, top=top)
        for field, title, unit, top in _CHARTS
    )


def _values(
    points: Mapping[str, Sequence[tuple[float, Mapping[str, Any]]]], field: str
) -> dict[str, list[tuple[float, float]]]:
    return {name: [(x, float(record[field])) for x, record in rows] for name, rows in points.items()}
