"""Points of the charts of a run, over iterations or another quantity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from webapp.core.contexts.charts import CHARTED, ChartSet, announced_charts, charts_of, run_charts
from webapp.core.contexts.numbers import bounds
from webapp.runs.contexts.collection import ENDED
from webapp.runs.kinds import kind_of
from webapp.runs.models.runs import Run
from webapp.runs.selectors import series as series_reads
from webapp.runs.selectors.iterations import Point
from webapp.runs.selectors.series import Axis

MOST_POINTS = 512
"""Greatest number of iterations charted one by one; of longer runs all but the tail are in buckets."""
_TAIL = 64
"""Newest iterations of a long run that are charted one by one."""
AXES = (
    (Axis.ITERATION.value, "iteration"), (Axis.ROLLOUTS.value, "rollouts collected"),
    (Axis.TOKENS.value, "tokens trained on"), (Axis.TIME.value, "time, hours"),
)  # fmt: skip
"""Quantities of the x axis, with their labels."""


def axis_of(params: Mapping[str, str]) -> str:
    """Return the quantity ``x`` of a query string; iterations if it is missing or unknown."""
    axis = params.get("x", "")
    return axis if axis in {value for value, _ in AXES} else Axis.ITERATION.value


def build_charts(run: Run, points: Sequence[Point]) -> ChartSet:
    """Return the charts of a run over its iterations, from its newest points, at most ``MOST_POINTS`` + 1."""
    if not points and run.state not in ENDED:
        return announced_charts(kind_of(run.kind).charts)
    if len(points) <= MOST_POINTS:
        return run_charts([(point.index, point.metrics) for point in points])
    series = series_reads.bucketed([run.pk], CHARTED, buckets=MOST_POINTS // 2, tail=_TAIL)[run.pk]
    return charts_of(series.x, series.mean, bucketed=True)


def build_chart_part(run_id: int, params: Mapping[str, str]) -> dict[str, object]:
    """Return the points of a run's charts from one place of an axis to another, as JSON.

    Raises ValueError for an unknown axis, or a bound that is no number.
    """
    low, high = bounds(params)
    axis = Axis(params.get("x") or Axis.ITERATION)
    parts = series_reads.bucketed([run_id], CHARTED, axis=axis, low=low, high=high, buckets=MOST_POINTS)
    return {"x": parts[run_id].x, "columns": parts[run_id].mean}
