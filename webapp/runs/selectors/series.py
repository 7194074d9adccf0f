"""Metrics of runs over their iterations, in buckets, which bound the number of points of a long run."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from django.db import connection
from django.db.models import Avg, Count, F, FloatField, Max
from django.db.models.fields.json import KT
from django.db.models.functions import Cast

from webapp.runs.models.iterations import Evaluation, Iteration
from webapp.runs.models.runs import Run
from webapp.runs.selectors.run_table import newest_metrics

TRAINED, COLLECTED = "tokens/trained", "funnel/trajectories"
"""Metrics whose running sums are the axes of tokens and of rollouts."""
EVALUATION = "eval:"
"""Prefix of the series of an evaluation's solve rate, before its name."""
_TABLES = {
    "iterations": Iteration._meta.db_table, "evaluations": Evaluation._meta.db_table,
    "runs": Run._meta.db_table,
}  # fmt: skip


class Axis(StrEnum):
    """Quantities of the x axis."""

    ITERATION = "iteration"
    TIME = "time"
    """Hours since the first start of the run."""
    ROLLOUTS = "rollouts"
    """Rollouts collected for updates so far."""
    TOKENS = "tokens"
    """Tokens trained on so far."""


@dataclass(frozen=True, slots=True)
class Series:
    """Metrics of one run; None where a metric was not reported."""

    x: list[float] = field(default_factory=list)
    """The last iteration, time or number of tokens of each bucket."""
    mean: dict[str, list[float | None]] = field(default_factory=dict)
    low: dict[str, list[float | None]] = field(default_factory=dict)
    high: dict[str, list[float | None]] = field(default_factory=dict)


_SUM = "sum((i.metrics->>%({metric})s)::float8) OVER (PARTITION BY i.run_id ORDER BY i.index)"
_X = {
    Axis.ITERATION: "i.index::float8",
    Axis.TIME: "extract(epoch FROM i.finished_at - r.running_at)::float8 / 3600",
    Axis.TOKENS: _SUM.format(metric="trained"),
    Axis.ROLLOUTS: _SUM.format(metric="collected"),
}
_BUCKETS = """
WITH placed AS MATERIALIZED (
    SELECT i.run_id, i.metrics || '{{}}' AS metrics, {x} AS x  -- unpacked once, not for each metric
    FROM {iterations} i JOIN {runs} r ON r.id = i.run_id
    WHERE i.run_id = ANY(%(runs)s) AND i.finished_at IS NOT NULL
), numbered AS (
    SELECT *, row_number() OVER (PARTITION BY run_id ORDER BY x) AS position,
        count(*) OVER (PARTITION BY run_id) AS total
    FROM placed
    WHERE x >= coalesce(%(low)s::float8, x) AND x <= coalesce(%(high)s::float8, x)
), sized AS (
    SELECT *, greatest(1, power(2, ceil(log(2, total::numeric / %(buckets)s))))::bigint AS width FROM numbered
)
SELECT run_id, max(x), {values}
FROM sized
GROUP BY run_id, CASE
    WHEN position > (total - %(tail)s) / width * width THEN position
    ELSE (position - 1) / width * width + 1 END
ORDER BY run_id, max(x)
"""


def bucketed(
    run_ids: Iterable[int],
    keys: Sequence[str],
    *,
    axis: Axis = Axis.ITERATION,
    low: float | None = None,
    high: float | None = None,
    buckets: int = 128,
    tail: int = 0,
    spread: bool = False,
) -> dict[int, Series]:
    """Return metrics of several runs as means over buckets of equally many iterations, with one query.

    Buckets start at the first iteration and their width is a power of two: a full bucket stays the same while
    the run goes on.

    Args:
        run_ids: the runs; one without a finished iteration has an empty series.
        keys: names of the metrics.
        axis: quantity of ``x``.
        low: least ``x``.
        high: greatest ``x``.
        buckets: greatest number of buckets of a run, without the tail.
        tail: newest iterations that are not put into buckets.
        spread: whether to return the extremes in each bucket too.
    """
    by_run = {run_id: Series() for run_id in run_ids}
    for series in by_run.values():
        for part in (series.mean, series.low, series.high) if spread else (series.mean,):
            part.update({key: [] for key in keys})
    aggregates = ("avg", "min", "max") if spread else ("avg",)
    values = [f"{name}((metrics->>%(key{i})s)::float8)" for i in range(len(keys)) for name in aggregates]
    query = _BUCKETS.format(x=_X[axis], values=", ".join(values), **_TABLES)
    parameters: dict[str, Any] = {f"key{i}": key for i, key in enumerate(keys)}
    parameters |= {"runs": list(by_run), "low": low, "high": high, "trained": TRAINED, "collected": COLLECTED}
    parameters |= {"buckets": buckets, "tail": tail}
    with connection.cursor() as cursor:
        cursor.execute(query, parameters)
        for run_id, x, *numbers in cursor:
            series = by_run[run_id]
            series.x.append(_short(x) or 0.0)
            parts = (series.mean, series.low, series.high)[: len(aggregates)]
            for position, key in enumerate(keys):
                for offset, part in enumerate(parts):
                    part[key].append(_short(numbers[position * len(aggregates) + offset]))
    return by_run


def aligned(run_ids: Collection[int], key: str, *, buckets: int = 256) -> dict[int, dict[int, float]]:
    """Return run → last iteration of a bucket → mean of a metric, in the same full buckets for all runs."""
    iterations = Iteration.objects.filter(run_id__in=run_ids, finished_at__isnull=False).order_by()
    # Counted: a single iteration with a huge index would make the buckets of all runs too wide to be full.
    lengths = iterations.values("run_id").annotate(length=Count("id"))
    total = lengths.aggregate(longest=Max("length"))["longest"] or 1
    width = math.ceil(total / buckets)
    rows = (
        iterations.annotate(bucket=F("index") / width, value=Cast(KT(f"metrics__{key}"), FloatField()))
        .values("run_id", "bucket")
        .annotate(mean=Avg("value"), last=Max("index"), number=Count("id"))
        .values_list("run_id", "bucket", "mean", "last", "number")
    )
    by_run: dict[int, dict[int, float]] = {run_id: {} for run_id in run_ids}
    for run_id, bucket, mean, last, number in rows:
        is_full = number == width or (bucket == total // width and number == total % width)
        if is_full and (value := _short(mean)) is not None:
            by_run[run_id][last] = value
    return by_run


_SUM_BEFORE = """(SELECT coalesce(sum((i.metrics->>%(METRIC)s)::float8), 0) FROM {iterations} i
        WHERE i.run_id = e.run_id AND i.index < e.iteration)"""
_EVALUATION_X = {
    Axis.ITERATION: "e.iteration::float8",
    Axis.TIME: "extract(epoch FROM e.finished_at - r.running_at)::float8 / 3600",
    Axis.TOKENS: _SUM_BEFORE.replace("METRIC", "trained"),
    Axis.ROLLOUTS: _SUM_BEFORE.replace("METRIC", "collected"),
}
_EVALUATIONS = """
SELECT run_id, x, solve_rate, interval_low, interval_high FROM (
    SELECT e.*, {x} AS x FROM {evaluations} e JOIN {runs} r ON r.id = e.run_id
    WHERE e.run_id = ANY(%(runs)s) AND e.name = %(name)s
) placed
WHERE x >= coalesce(%(low)s::float8, x) AND x <= coalesce(%(high)s::float8, x)
ORDER BY run_id, iteration
"""


def evaluated(
    run_ids: Iterable[int],
    name: str,
    *,
    axis: Axis = Axis.ITERATION,
    low: float | None = None,
    high: float | None = None,
) -> dict[int, Series]:
    """Return the solve rates of the evaluations of one name and their 95 % intervals, with one query."""
    key = f"{EVALUATION}{name}"
    by_run = {run_id: Series(mean={key: []}, low={key: []}, high={key: []}) for run_id in run_ids}
    query = _EVALUATIONS.format(x=_EVALUATION_X[axis].format(**_TABLES), **_TABLES)
    with connection.cursor() as cursor:
        parameters = {
            "runs": list(by_run),
            "name": name,
            "low": low,
            "high": high,
            "trained": TRAINED,
            "collected": COLLECTED,
        }
        cursor.execute(query, parameters)
        for run_id, x, rate, least, most in cursor:
            series = by_run[run_id]
            series.x.append(_short(x) or 0.0)
            for part, value in ((series.mean, rate), (series.low, least), (series.high, most)):
                part[key].append(_short(value))
    return by_run


def reported_metrics(run_ids: Iterable[int]) -> set[str]:
    """Return the names of the metrics in the newest finished iterations of the runs."""
    return {key for metrics in newest_metrics(list(run_ids)).values() for key in metrics}


def evaluation_keys(run_ids: Iterable[int]) -> set[str]:
    """Return the keys of the series of the runs' evaluations, one for each name."""
    rows = Evaluation.objects.filter(run_id__in=list(run_ids)).order_by()
    return {f"{EVALUATION}{name}" for name in rows.values_list("name", flat=True).distinct()}


def _short(value: float | None) -> float | None:
    """Return a number with six significant digits; None for infinity and NaN, which JSON lacks."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None
