"""A run's use of its machine over time, with its sandboxes and inference engines: page, API and command."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

from webapp.core.contexts.line_charts import LineChart, line_chart
from webapp.runs.models.engines import EngineSample
from webapp.runs.models.runs import Run
from webapp.runs.selectors import engines as engine_reads
from webapp.runs.selectors import system as reads
from webapp.runs.selectors.system import SystemHistory

PAGE_POINTS = 300
"""Largest number of points of a line on the page."""
_GB, _MB = 1e9, 1e6
_COLOURS = 8
Points = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Quantity:
    """One chart: a quantity with its unit, and the points (Unix seconds, value) of each series."""

    key: str
    title: str
    unit: str
    series: Mapping[str, Points]
    top: float | None = None
    """Fixed upper end of the y axis."""


@dataclass(frozen=True, slots=True)
class SeriesRow:
    """Summary of one series for the table."""

    title: str
    unit: str
    name: str
    newest: float
    mean: float
    """Mean over the points, not weighted by time."""
    highest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemView:
    """Use of the machine over all attempts of a run."""

    quantities: tuple[Quantity, ...]
    """Empty before the first report."""
    rows: tuple[SeriesRow, ...]
    since: datetime | None
    until: datetime | None
    cores: int
    memory_total: float
    """Memory of the machine, GB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemPanel:
    """Tab of a run's use of its machine."""

    view: SystemView
    charts: tuple[LineChart, ...]


def build_system(run: Run, *, points: int = reads.MOST_POINTS) -> SystemView:
    """Return a run's use of its machine with at most ``points`` points a series; five queries."""
    history = reads.history(run.pk, points=points)
    quantities = tuple(
        quantity for quantity in (*_machine(history), *_engines(run)) if any(quantity.series.values())
    )
    times = [time for quantity in quantities for series in quantity.series.values() for time, _ in series]
    return SystemView(
        quantities=quantities,
        rows=tuple(_rows(quantities)),
        since=datetime.fromtimestamp(min(times), UTC) if times else None,
        until=datetime.fromtimestamp(max(times), UTC) if times else None,
        cores=history.cores,
        memory_total=history.memory_total / _GB,
    )


def build_system_panel(run: Run) -> SystemPanel:
    """Return the tab; no chart with fewer than two moments."""
    view = build_system(run, points=PAGE_POINTS)
    if view.since is None or view.until is None or view.since == view.until:
        return SystemPanel(view=view, charts=())
    start, length = view.since.timestamp(), (view.until - view.since).total_seconds()
    return SystemPanel(
        view=view,
        charts=tuple(
            line_chart(
                quantity.key,
                quantity.title,
                quantity.unit,
                {
                    name: [((time - start) / length, value) for time, value in series]
                    for name, series in quantity.series.items()
                },
                colours={name: 1 + i % _COLOURS for i, name in enumerate(quantity.series)},
                top=quantity.top,
            )
            for quantity in view.quantities
        ),
    )


def _machine(history: SystemHistory) -> Iterable[Quantity]:
    def series(columns: Mapping[str, str]) -> dict[str, Points]:
        return {
            name: [
                (time, value)
                for time, value in zip(history.times, history.columns[column], strict=True)
                if value is not None
            ]
            for name, column in columns.items()
        }

    def gpus(value: Callable[[reads.GpuPoint], float]) -> dict[str, Points]:
        lines: dict[str, Points] = {}
        for point in history.gpus:
            lines.setdefault(f"GPU {point.index}", []).append((point.time, value(point)))
        return lines

    parts = ("engine", "children", "machine")
    yield Quantity("cpu", "Processor", "cores in use", series({name: f"cpu_{name}" for name in parts}))
    yield _bytes("memory", "Memory", series({name: f"memory_{name}" for name in parts}))
    yield Quantity("gpu_use", "GPU utilisation", "share of time", gpus(lambda point: point.use), 1.0)
    yield _bytes("gpu_memory", "GPU memory", gpus(lambda point: point.memory))
    yield Quantity("processes", "Child processes", "processes", series({"children": "processes"}))
    yield _bytes("folder", "Run folder", series({"folder": "folder"}))
    yield _bytes("disk_free", "Free disk space", series({"free": "disk_free"}))
    yield Quantity("sandboxes", "Sandboxes", "at once", series({"live": "live", "queued": "waiting"}))


def _bytes(key: str, title: str, series: Mapping[str, Points]) -> Quantity:
    """Return a quantity of bytes in GB, or in MB where all values are below one GB."""
    highest = max((value for points in series.values() for _, value in points), default=0.0)
    unit, scale = ("GB", _GB) if highest >= _GB else ("MB", _MB)
    scaled = {name: [(time, value / scale) for time, value in points] for name, points in series.items()}
    return Quantity(key, title, unit, scaled)


def _engines(run: Run) -> Iterable[Quantity]:
    samples = [sample for sample in engine_reads.history(run.pk) if sample.replicas]

    def series(field: str, combine: Callable[[list[float]], float]) -> Points:
        return [(sample.time.timestamp(), combine(_values(sample, field))) for sample in samples]

    requests = {name: series(name, sum) for name in ("running", "waiting")}
    yield Quantity("requests", "Inference requests", "over all engines", requests)
    yield Quantity(
        "kv_use", "KV cache use", "mean share of the caches", {"used": series("kv_use", fmean)}, 1.0
    )
    hits = {"hits": series("prefix_hit_rate", fmean)}
    yield Quantity("prefix_hits", "Prefix cache hits", "share of prompt tokens", hits, 1.0)


def _values(sample: EngineSample, field: str) -> list[float]:
    records: list[dict[str, Any]] = sample.replicas
    return [float(record[field]) for record in records]


def _rows(quantities: Iterable[Quantity]) -> Iterable[SeriesRow]:
    for quantity in quantities:
        for name, series in quantity.series.items():
            if series:
                values = [value for _, value in series]
                yield SeriesRow(quantity.title, quantity.unit, name, values[-1], fmean(values), max(values))
