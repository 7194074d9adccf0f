"""Curves of an experiment's arms: mean over seeds, with a band from the lowest to the highest seed."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from webapp.core.contexts.charts import REWARD, ChartSet, ChartSpec, Columns, Series
from webapp.experiments.contexts.arms import ArmRow
from webapp.runs.selectors import runs as run_reads
from webapp.runs.selectors import series as series_reads
from webapp.runs.selectors.series import EVALUATION

Curve = Mapping[int, float]
"""Iteration → value of one run."""


def arm_charts(arms: Sequence[ArmRow]) -> ChartSet:
    """Return the charts of reward and held-out solve rate with a line and a band for each arm."""
    numbers = [cell.run.pk for row in arms for cell in row.cells if cell.run is not None]
    charts: tuple[tuple[str, str, Mapping[int, Curve]], ...] = (
        ("reward", "Reward", series_reads.aligned(numbers, REWARD)),
        ("heldout", "Held-out solve rate", _heldout(numbers)),
    )
    bands = {
        (chart, position): band([curves[cell.run.pk] for cell in row.cells if cell.run is not None])
        for chart, _, curves in charts
        for position, row in enumerate(arms)
    }
    x = sorted({place for points in bands.values() for place in points})
    columns: list[Columns] = [{}, {}, {}]
    for (chart, position), points in bands.items():
        for part, values in enumerate(columns):
            if points:
                values[f"{chart}/{position}"] = [points[at][part] if at in points else None for at in x]
    specs = [
        ChartSpec(
            chart,
            title,
            "",
            tuple(
                Series(f"{chart}/{position}", row.arm.name, row.colour, row.dash)
                for position, row in enumerate(arms)
                if bands[chart, position]
            ),
            joined=True,
        )
        for chart, title, _ in charts
    ]
    mean, low, high = columns
    drawn = tuple(spec for spec in specs if spec.series)
    return ChartSet(drawn, [float(at) for at in x], mean, low=low, high=high)


def _heldout(numbers: Sequence[int]) -> dict[int, Curve]:
    names = {number: row.name for number, row in run_reads.newest_heldout(numbers).items()}
    curves: dict[int, Curve] = {number: {} for number in numbers}
    for name in set(names.values()):
        members = [number for number in numbers if names.get(number) == name]
        for number, points in series_reads.evaluated(members, name).items():
            rates = points.mean[f"{EVALUATION}{name}"]
            curves[number] = {
                int(x): rate for x, rate in zip(points.x, rates, strict=True) if rate is not None
            }
    return curves


def band(curves: Iterable[Curve]) -> dict[int, tuple[float, float, float]]:
    """Return mean, lowest and highest value by iteration, where all runs with points have one."""
    known = [curve for curve in curves if curve]
    shared = set[int].intersection(*(set(curve) for curve in known)) if known else set()
    return {
        x: (statistics.fmean(values), min(values), max(values))
        for x in sorted(shared)
        if (values := [curve[x] for curve in known])
    }
