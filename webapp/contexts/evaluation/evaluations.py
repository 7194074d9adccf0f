"""Evaluations of a run as points with 95 % intervals on a common axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.types import RunKind
from webapp.contexts.charts.charts import run_charts
from webapp.contexts.charts.line_charts import LineChart, line_chart
from webapp.models import Evaluation, Run
from webapp.selectors.run import iterations as reads


@dataclass(frozen=True, slots=True)
class EvaluationPoint:
    """One evaluation and where its mark and whiskers lie on an axis of 0 … 100."""

    evaluation: Evaluation
    at: str
    low: str
    high: str
    change: float | None
    """Against the first evaluation of the same name, as a difference of shares."""

    @property
    def partial(self) -> bool:
        """Return whether the evaluation has not ended: its numbers are of the tasks that have."""
        return self.evaluation.pk is None


@dataclass(frozen=True, slots=True)
class EvaluationPlot:
    """Every evaluation of one name, oldest first."""

    name: str
    points: tuple[EvaluationPoint, ...]
    charts: tuple[LineChart, ...]
    """Metrics of its rollouts and of the policy over the evaluations; empty for fewer than two."""

    @property
    def first(self) -> EvaluationPoint:
        """Before training."""
        return self.points[0]

    @property
    def last(self) -> EvaluationPoint:
        """The newest."""
        return self.points[-1]

    @property
    def since(self) -> str:
        """Return the left end of the charts."""
        return f"iteration {self.first.evaluation.iteration}"

    @property
    def until(self) -> str:
        """Return the right end of the charts."""
        return f"iteration {self.last.evaluation.iteration}"


def run_evaluations(run: Run) -> tuple[EvaluationPlot, ...]:
    """Return the plots of a run's evaluations, with the numbers so far of one that has not ended."""
    evaluations = reads.evaluations(run.pk)
    if not evaluations and run.kind == RunKind.EVALUATE:
        partial = reads.partial_evaluation(run)
        evaluations = [partial] if partial is not None else []
    return evaluation_plot(evaluations)


def evaluation_plot(evaluations: list[Evaluation]) -> tuple[EvaluationPlot, ...]:
    """Return one plot per name; ``evaluations`` are ordered by name, then iteration."""
    by_name: dict[str, list[Evaluation]] = {}
    for evaluation in evaluations:
        by_name.setdefault(evaluation.name, []).append(evaluation)
    return tuple(
        EvaluationPlot(
            name,
            tuple(
                EvaluationPoint(
                    row,
                    f"{100 * row.solve_rate:.2f}",
                    f"{100 * row.interval_low:.2f}",
                    f"{100 * row.interval_high:.2f}",
                    row.solve_rate - rows[0].solve_rate if row is not rows[0] else None,
                )
                for row in rows
            ),
            _metric_charts(rows),
        )
        for name, rows in by_name.items()
    )


def _metric_charts(evaluations: Sequence[Evaluation]) -> tuple[LineChart, ...]:
    if len(evaluations) < 2:
        return ()
    found = run_charts([reads.Point(row.iteration, row.metrics, None) for row in evaluations])
    first, last = found.x[0], found.x[-1]
    places = [(x - first) / ((last - first) or 1.0) for x in found.x]

    def reported(key: str) -> list[tuple[float, float]]:
        return [(x, y) for x, y in zip(places, found.columns[key], strict=True) if y is not None]

    return tuple(
        line_chart(
            spec.id,
            spec.title,
            spec.unit,
            {series.label: reported(series.key) for series in spec.series},
            colours={series.label: series.colour for series in spec.series},
            top=spec.span[1] if spec.span else None,
        )
        for spec in found.specs
    )
