"""Evaluations of a run as points with 95 % intervals on a common axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import urlencode

from django.urls import reverse

from engine.evaluation.comparison import PairedChange
from engine.types import RunKind, RunState
from webapp.core.contexts.charts import run_charts
from webapp.core.contexts.line_charts import LineChart, line_chart
from webapp.rollouts.selectors.attempts import point_key
from webapp.runs.models.iterations import Evaluation
from webapp.runs.models.runs import Run
from webapp.runs.selectors import iterations as reads


@dataclass(frozen=True, slots=True)
class EvaluationPoint:
    """One evaluation, with the positions of its mark and whiskers on an axis of 0 … 100."""

    evaluation: Evaluation
    at: str
    low: str
    high: str

    @property
    def partial(self) -> bool:
        """Return whether the evaluation has not ended, so that its numbers cover only ended tasks."""
        return self.evaluation.pk is None


@dataclass(frozen=True, slots=True)
class EvaluationPlot:
    """Every evaluation of one name, oldest first."""

    name: str
    points: tuple[EvaluationPoint, ...]
    change: PairedChange | None
    """From the first to the newest; None for a single evaluation, and without common tasks."""
    charts: tuple[LineChart, ...]
    """Metrics of its rollouts and of the policy over the evaluations; empty for fewer than two."""

    @property
    def first(self) -> EvaluationPoint:
        """Return the oldest evaluation."""
        return self.points[0]

    @property
    def last(self) -> EvaluationPoint:
        """Return the newest ended evaluation; if none has ended, the partial one."""
        return next((point for point in reversed(self.points) if not point.partial), self.points[-1])

    @property
    def shown(self) -> tuple[tuple[str, EvaluationPoint], ...]:
        """Return the first, the newest and the partial evaluation, each with its label."""
        pair = (("before", self.first), ("newest", self.last)) if self.first is not self.last else ()
        single = () if pair else (("", self.last),)
        running = self.points[-1]
        return (*pair, *single, *((("", running),) if running is not self.last else ()))

    @property
    def compare_url(self) -> str:
        """Return the URL of the comparison of the first with the newest evaluation."""
        return evaluation_comparison_url(self.first.evaluation, self.last.evaluation)

    @property
    def since(self) -> str:
        """Return the label of the charts' left end."""
        return f"iteration {self.first.evaluation.iteration}"

    @property
    def until(self) -> str:
        """Return the label of the charts' right end."""
        return f"iteration {self.last.evaluation.iteration}"


def evaluation_comparison_url(first: Evaluation, second: Evaluation) -> str:
    """Return the URL of the comparison of two evaluations."""
    keys = (point_key(row.run_id, f"eval:{row.name}", row.iteration) for row in (first, second))
    return f"{reverse('evaluation-compare')}?{urlencode(dict(zip(('first', 'second'), keys, strict=True)))}"


def run_evaluations(run: Run) -> tuple[EvaluationPlot, ...]:
    """Return the plots of a run's evaluations, with the numbers so far of those that have not ended."""
    ended = reads.evaluations(run.pk)
    partial = []
    if run.state != RunState.SUCCEEDED and RunKind(run.kind).has_rollouts and not run.is_imported:
        partial = reads.partial_evaluations(run, ended)
    by_name = _by_name(ended)
    changes = reads.paired_changes([(rows[0], rows[-1]) for rows in by_name.values() if len(rows) > 1])
    every = sorted([*ended, *partial], key=lambda row: (row.name, row.iteration))
    return evaluation_plot(every, changes)


def evaluation_plot(
    evaluations: Sequence[Evaluation], changes: Mapping[int, PairedChange] = MappingProxyType({})
) -> tuple[EvaluationPlot, ...]:
    """Return one plot per name.

    Args:
        evaluations: ordered by name, then iteration; unsaved ones are partial.
        changes: from the first to the newest of a name, by the newest's key.
    """
    return tuple(
        EvaluationPlot(
            name,
            tuple(map(_point, rows)),
            next((changes[row.pk] for row in rows if row.pk in changes), None),
            _metric_charts([row for row in rows if row.pk is not None]),
        )
        for name, rows in _by_name(evaluations).items()
    )


def _by_name(evaluations: Sequence[Evaluation]) -> dict[str, list[Evaluation]]:
    by_name: dict[str, list[Evaluation]] = {}
    for evaluation in evaluations:
        by_name.setdefault(evaluation.name, []).append(evaluation)
    return by_name


def _point(row: Evaluation) -> EvaluationPoint:
    return EvaluationPoint(
        row,
        f"{100 * row.solve_rate:.2f}",
        f"{100 * row.interval_low:.2f}",
        f"{100 * row.interval_high:.2f}",
    )


def _metric_charts(evaluations: Sequence[Evaluation]) -> tuple[LineChart, ...]:
    if len(evaluations) < 2:
        return ()
    charts = run_charts([(row.iteration, row.metrics) for row in evaluations])
    first, last = charts.x[0], charts.x[-1]
    places = [(x - first) / ((last - first) or 1.0) for x in charts.x]

    def reported(key: str) -> list[tuple[float, float]]:
        return [(x, y) for x, y in zip(places, charts.columns[key], strict=True) if y is not None]

    return tuple(
        line_chart(
            spec.id,
            spec.title,
            spec.unit,
            {series.label: reported(series.key) for series in spec.series},
            colours={series.label: series.colour for series in spec.series},
            top=spec.span[1] if spec.span else None,
        )
        for spec in charts.specs
    )
