"""Evaluations of a run as points with 95 % intervals on a common axis."""

from __future__ import annotations

from dataclasses import dataclass

from engine.types import RunKind
from webapp.models import Evaluation, Run
from webapp.selectors import iterations as reads


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

    @property
    def first(self) -> EvaluationPoint:
        """Before training."""
        return self.points[0]

    @property
    def last(self) -> EvaluationPoint:
        """The newest."""
        return self.points[-1]


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
        )
        for name, rows in by_name.items()
    )
