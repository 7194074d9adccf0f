"""Comparison of up to ten runs: data for the charts, and settings that differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse
from django.utils import timezone

from webapp.core.contexts.charts import RUN_CHARTS
from webapp.core.contexts.frame import Crumb
from webapp.core.contexts.numbers import MOST_ID, bounds, whole
from webapp.runs.contexts.chart_points import AXES, axis_of
from webapp.runs.contexts.config_view import Difference, compare_settings
from webapp.runs.contexts.header import elapsed
from webapp.runs.contexts.policy_label import policy_label
from webapp.runs.models.iterations import Evaluation
from webapp.runs.models.runs import Run
from webapp.runs.selectors import iterations as iteration_reads
from webapp.runs.selectors import runs as run_reads
from webapp.runs.selectors import series as series_reads
from webapp.runs.selectors.series import EVALUATION, Axis, Series

MOST_RUNS = 10
MOST_KEYS = 12
"""Maximum metrics of one request for points."""
COLOURS = 9
DASHES = 3
FIRST = (
    "reward/mean", "eval:heldout", "solve/all", "solve/none", "steps/mean", "tokens/response_mean",
    "tokens/thinking_per_step", "entropy/mean", "grad/norm",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """One of the runs."""

    run: Run
    colour: int
    dash: int
    """Pattern of its lines, a second cue beside the colour."""
    policy: str
    heldout: Evaluation | None
    """Newest evaluation of held-out tasks."""
    iterations: int
    elapsed_seconds: float | None
    without_url: str
    """URL of the comparison without this run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparisonContext:
    """Context of the comparison page."""

    section: str
    crumbs: tuple[Crumb, ...]
    compared: tuple[ComparedRun, ...]
    left_out: int
    """Number of runs in the query string beyond the limit."""
    missing: tuple[str, ...]
    """Parts of the query string that name no run."""
    differences: tuple[Difference, ...]
    num_equal: int
    axes: tuple[tuple[str, str], ...]
    axis: str
    charts: Mapping[str, object]
    chosen: str
    """Value of ``runs`` in the query string."""
    offers: tuple[tuple[int, str], ...]
    """Newest runs that could be added."""


def parse_runs(texts: Iterable[str]) -> tuple[list[int], list[str]]:
    """Return the distinct run numbers of a query string in order, and the parts that are not numbers."""
    parts = [part.strip() for text in texts for part in text.split(",") if part.strip()]
    numbers = [(part, whole(part.split()[0], most=MOST_ID)) for part in parts]
    distinct = dict.fromkeys(number for _, number in numbers if number is not None)
    return list(distinct), [part for part, number in numbers if number is None]


def read_runs(texts: Iterable[str]) -> tuple[list[Run], int, list[str]]:
    """Return the runs of a query string, their number beyond the limit, and the parts that name no run."""
    numbers, invalid = parse_runs(texts)
    wanted = numbers[:MOST_RUNS]
    by_number = run_reads.runs_by_number(wanted)
    invalid += [str(number) for number in wanted if number not in by_number]
    runs = [by_number[number] for number in wanted if number in by_number]
    return runs, len(numbers) - len(wanted), invalid


def build_run_comparison(texts: Sequence[str], params: Mapping[str, str]) -> RunComparisonContext:
    """Build the context of the page, with a number of queries independent of the length of the runs."""
    runs, left_out, invalid = read_runs(texts)
    numbers = [run.pk for run in runs]
    compared = _compared(runs)
    differences, num_equal = compare_settings([run.config for run in runs])
    return RunComparisonContext(
        section="runs",
        crumbs=(Crumb("Runs", reverse("run-list")), Crumb("Comparison")),
        compared=compared,
        left_out=left_out,
        missing=tuple(part[:40] for part in invalid[:MOST_RUNS]),
        differences=differences,
        num_equal=num_equal,
        axes=AXES,
        axis=axis_of(params),
        charts=_charts(compared),
        chosen=",".join(map(str, numbers)),
        offers=tuple(run_reads.comparable_runs(without=numbers)),
    )


def _compared(runs: Sequence[Run]) -> tuple[ComparedRun, ...]:
    numbers = [run.pk for run in runs]
    newest = run_reads.newest_heldout(numbers)
    finished = iteration_reads.count_finished(numbers)
    now = timezone.now()
    return tuple(
        ComparedRun(
            run=run,
            colour=1 + index % COLOURS,
            dash=(index + index // COLOURS) % DASHES,
            policy=policy_label(run.config.get("policy")),
            heldout=newest.get(run.pk),
            iterations=finished.get(run.pk, 0),
            elapsed_seconds=elapsed(run, now),
            without_url=comparison_url(number for number in numbers if number != run.pk),
        )
        for index, run in enumerate(runs)
    )


def comparison_url(numbers: Iterable[int], **view: str) -> str:
    """Return the URL of a comparison, with the view of its charts."""
    return f"{reverse('run-compare')}?{urlencode({'runs': ','.join(map(str, numbers)), **view}, safe=',')}"


def _charts(compared: Sequence[ComparedRun]) -> dict[str, object]:
    """Return the data for ``js/run_compare.js``: lines, charts, and the URL of their points."""
    numbers = [entry.run.pk for entry in compared]
    reported = {*series_reads.reported_metrics(numbers), *series_reads.evaluation_keys(numbers)}
    titles = {
        series.key: (spec.title if len(spec.series) == 1 else f"{spec.title}: {series.label}", spec.unit)
        for spec in RUN_CHARTS
        for series in spec.series
    }
    for key in reported:
        if key.startswith(EVALUATION):
            titles[key] = (f"Solve rate, {key.removeprefix(EVALUATION)}", "share of samples, 95 % interval")
    first = [key for key in FIRST if key in reported]
    keys = [*first, *(key for key in titles if key in reported and key not in FIRST)]
    return {
        "source": reverse("run-series"),
        "most": MOST_KEYS,
        "runs": [
            {"id": entry.run.pk, "label": f"run {entry.run.pk}", "colour": entry.colour, "dash": entry.dash}
            for entry in compared
        ],
        "charts": [{"key": key, "title": titles[key][0], "unit": titles[key][1]} for key in keys],
    }  # fmt: skip


def summarise_comparison(texts: Sequence[str]) -> dict[str, Any]:
    """Return the runs of a comparison, the settings that differ and the metrics of the runs, as JSON.

    Raises ValueError for no run, too many runs, or an unknown run.
    """
    runs, left_out, invalid = read_runs(texts)
    if invalid or left_out or not runs:
        raise ValueError(f"expected 1 to {MOST_RUNS} runs{f', not {invalid[0][:40]!r}' if invalid else ''}")
    numbers = [run.pk for run in runs]
    differences, num_equal = compare_settings([run.config for run in runs])
    metrics = {*series_reads.reported_metrics(numbers), *series_reads.evaluation_keys(numbers)}
    return {
        "runs": numbers,
        "differences": [{"key": row.key, "values": list(row.values)} for row in differences],
        "num_equal": num_equal,
        "metrics": sorted(metrics),
    }


def build_series(texts: Sequence[str], params: Mapping[str, str]) -> dict[str, object]:
    """Return the points of some charts of some runs, as JSON.

    Raises ValueError for an unknown axis, a bound that is not a number, or too many runs or metrics.
    """
    numbers, invalid = parse_runs(texts)
    keys = [key for key in params.get("keys", "").split(",") if key]
    if invalid or len(numbers) > MOST_RUNS or len(keys) > MOST_KEYS:
        raise ValueError(f"expected at most {MOST_RUNS} runs and {MOST_KEYS} metrics")
    axis = Axis(params.get("x") or Axis.ITERATION)
    low, high = bounds(params)
    plain = [key for key in keys if not key.startswith(EVALUATION)]
    answer: dict[str, dict[str, object]] = {str(number): {} for number in numbers}

    def add(series_by_run: Mapping[int, Series], wanted: Iterable[str]) -> None:
        for number, series in series_by_run.items():
            for key in wanted:
                answer[str(number)][key] = {
                    "x": series.x, "y": series.mean[key], "low": series.low[key], "high": series.high[key]
                }  # fmt: skip

    if plain:
        buckets = 256 if len(numbers) <= 4 else 128
        metrics = series_reads.bucketed(
            numbers, plain, axis=axis, low=low, high=high, buckets=buckets, spread=True
        )
        add(metrics, plain)
    for key in set(keys) - set(plain):
        name = key.removeprefix(EVALUATION)
        add(series_reads.evaluated(numbers, name, axis=axis, low=low, high=high), [key])
    return {"runs": answer}
