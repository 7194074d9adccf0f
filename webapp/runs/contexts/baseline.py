"""Held-out solve rates of runs against their baselines, task by task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.evaluation.comparison import paired_bootstrap
from webapp.evaluations.contexts.evaluations import evaluation_comparison_url
from webapp.runs.models.iterations import Evaluation
from webapp.runs.models.runs import Run
from webapp.runs.selectors.baselines import Baselines
from webapp.runs.selectors.iterations import task_rates
from webapp.runs.selectors.runs import newest_heldout


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineChange:
    """Difference of a run's newest held-out rate from its baseline's, over the tasks that both graded."""

    baseline: int
    """Number of the baseline's run."""
    difference: float
    low: float | None
    high: float | None
    """95 % interval for tasks like these; None for a single task."""
    num_tasks: int
    url: str
    """Address of the comparison task by task."""

    @property
    def verdict(self) -> str:
        """Return the conclusion in a word."""
        if self.low is None or self.high is None:
            return "one task"
        if self.low <= 0 <= self.high:
            return "indistinguishable"
        return "better" if self.difference > 0 else "worse"


def baseline_changes(
    runs: Sequence[Run], baselines: Baselines, heldout: Mapping[int, Evaluation]
) -> dict[int, BaselineChange]:
    """Return the changes of the runs that have one.

    Left out are runs without a baseline, without a held-out evaluation of the baseline's name, and without a
    task that both graded.

    Args:
        runs: the runs.
        baselines: the pinned runs.
        heldout: newest held-out evaluations, by run.
    """
    numbers = {run.pk: number for run in runs if (number := baselines.of(run)) is not None}
    rates_of = newest_heldout(set(numbers.values())) if numbers else {}
    pairs = {
        run_id: (rates_of[number], heldout[run_id])
        for run_id, number in numbers.items()
        if number in rates_of and run_id in heldout and rates_of[number].name == heldout[run_id].name
    }
    rates = task_rates([row for pair in pairs.values() for row in pair])
    changes = {}
    for run_id, (first, second) in pairs.items():
        before, after = rates[first.pk], rates[second.pk]
        differences = [after[task] - before[task] for task in sorted(before.keys() & after.keys())]
        if not differences:
            continue
        low, high = paired_bootstrap(differences)
        changes[run_id] = BaselineChange(
            baseline=first.run_id,
            difference=math.fsum(differences) / len(differences),
            low=low,
            high=high,
            num_tasks=len(differences),
            url=evaluation_comparison_url(first, second),
        )
    return changes
