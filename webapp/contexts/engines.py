"""Inference engines of a run: their state and load now, and their load over time as small charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from webapp.models import EngineReport, EngineSample, Run
from webapp.selectors import engines as reads
from webapp.services.states import LIVE

WIDTH, HEIGHT = 300, 80
_COLOURS = 8
_MARKS = {"ready": "passed", "left_out": "failed", "starting": "starting", "publishing": "running"}
_CHARTS = (
    ("kv_use", "KV cache use", "share of the cache", 1.0),
    ("running", "Running requests", "requests", None),
    ("waiting", "Waiting requests", "requests inside of engines", None),
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


@dataclass(frozen=True, slots=True)
class Line:
    """One engine's values over time, as points of an SVG path."""

    name: str
    colour: int
    path: str
    last: float | None


@dataclass(frozen=True, slots=True)
class EngineChart:
    """One quantity of all engines over time."""

    id: str
    title: str
    unit: str
    top: float
    """Value at the upper end of the y axis."""
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginesView:
    """Engines of a run."""

    replicas: tuple[Replica, ...]
    reported_at: datetime | None
    current: bool
    """True while the run is live: else the report is the last one before its end."""
    queued: int
    ready: int
    left_out: tuple[Replica, ...]
    charts: tuple[EngineChart, ...]
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
    """Return how many engines of a live run are ready; None without a report."""
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
) -> tuple[EngineChart, ...]:
    """Return the charts; none if there are fewer than two moments to show."""
    if len(moments) < 2:
        return ()
    start, end = moments[0].time.timestamp(), moments[-1].time.timestamp()
    points: dict[str, list[tuple[float, Mapping[str, Any]]]] = {name: [] for name in colours}
    for one in moments:
        x = WIDTH * (one.time.timestamp() - start) / ((end - start) or 1.0)
        for record in one.replicas:
            points[str(record["name"])].append((x, record))
    return tuple(_chart(field, title, unit, top, points, colours) for field, title, unit, top in _CHARTS)


def _chart(
    field: str,
    title: str,
    unit: str,
    top: float | None,
    points: Mapping[str, Sequence[tuple[float, Mapping[str, Any]]]],
    colours: Mapping[str, int],
) -> EngineChart:
    values = {name: [(x, float(record[field])) for x, record in rows] for name, rows in points.items()}
    highest = top or max((y for rows in values.values() for _, y in rows), default=0.0) or 1.0
    lines = tuple(
        Line(
            name,
            colours[name],
            " ".join(f"{x:.1f},{HEIGHT - HEIGHT * min(y, highest) / highest:.1f}" for x, y in rows),
            rows[-1][1] if rows else None,
        )
        for name, rows in values.items()
    )
    return EngineChart(field, title, unit, highest, lines)
