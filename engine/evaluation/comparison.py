"""Comparison of two evaluations task by task: difference, interval, test, and gained and lost tasks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from engine.errors import DatasetError
from engine.evaluation.attempts import Attempt, graded_by_task, solve_share

RESAMPLES = 2000
SIGNIFICANT = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskChange:
    """A task whose solve rate differs."""

    task_id: str
    before: float
    after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Second evaluation against the first, over the tasks that both graded."""

    num_shared: int
    only_first: tuple[str, ...]
    """Tasks that only the first graded: not compared."""
    only_second: tuple[str, ...]
    rate_first: float
    rate_second: float
    """Mean over the shared tasks of their solve rates."""
    difference: float
    interval_low: float | None
    interval_high: float | None
    """95 % interval of ``difference`` for tasks like these, by a paired bootstrap over tasks; None for a
    single task."""
    gained: tuple[TaskChange, ...]
    """Tasks with a higher rate in the second, largest change first."""
    lost: tuple[TaskChange, ...]
    test: Literal["McNemar", "sign"]
    """Exact test of ``p_value``: McNemar's over tasks that both tried once, else the sign test over the tasks
    whose rates differ."""
    p_value: float
    """Two-sided."""

    @property
    def unequal(self) -> bool:
        """Return whether a task was graded by one of the evaluations only."""
        return bool(self.only_first or self.only_second)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedChange:
    """Change of a solve rate over the same tasks."""

    difference: float
    p_value: float
    """Two-sided, of the exact sign test over the tasks whose rates differ."""

    @property
    def is_significant(self) -> bool:
        """Return whether the p-value is below ``SIGNIFICANT``."""
        return self.p_value < SIGNIFICANT


def compare(
    first: Iterable[Attempt], second: Iterable[Attempt], *, seed: int = 0, resamples: int = RESAMPLES
) -> Comparison:
    """Compare two evaluations over the tasks that both graded.

    Raises:
        DatasetError: no task was graded by both.
    """
    tried = [graded_by_task(first), graded_by_task(second)]
    before, after = ({task: solve_share(attempts) for task, attempts in tasks.items()} for tasks in tried)
    shared = sorted(before.keys() & after.keys())
    if not shared:
        raise DatasetError(
            f"the evaluations graded {len(before)} and {len(after)} tasks and none of them in common; "
            "compare evaluations of the same dataset and split"
        )
    changes = [TaskChange(task_id=task, before=before[task], after=after[task]) for task in shared]
    differences = [change.after - change.before for change in changes]
    low, high = paired_bootstrap(differences, seed=seed, resamples=resamples)
    gained, lost = _directed(changes, 1), _directed(changes, -1)
    return Comparison(
        num_shared=len(shared),
        only_first=tuple(sorted(before.keys() - after.keys())),
        only_second=tuple(sorted(after.keys() - before.keys())),
        rate_first=statistics.fmean(before[task] for task in shared),
        rate_second=statistics.fmean(after[task] for task in shared),
        difference=statistics.fmean(differences),
        interval_low=low,
        interval_high=high,
        gained=gained,
        lost=lost,
        test="McNemar" if all(len(tasks[task]) == 1 for tasks in tried for task in shared) else "sign",
        p_value=sign_test(len(gained), len(lost)),
    )


def paired_change(before: Mapping[str, float], after: Mapping[str, float]) -> PairedChange | None:
    """Return the change of per-task solve rates over the tasks that both have; None without such tasks."""
    differences = [after[task] - before[task] for task in before.keys() & after.keys()]
    if not differences:
        return None
    gained, lost = (sum(sign * difference > 0 for difference in differences) for sign in (1, -1))
    return PairedChange(difference=math.fsum(differences) / len(differences), p_value=sign_test(gained, lost))


def sign_test(num_gained: int, num_lost: int) -> float:
    """Return the two-sided p-value of the exact sign test, which is McNemar's for single attempts.

    Under the null hypothesis, a task that differs is gained or lost with equal probability; 1 if none does.
    """
    n = num_gained + num_lost
    tail = sum(math.comb(n, i) for i in range(min(num_gained, num_lost) + 1))
    return min(1.0, 2 * tail / (1 << n))


def paired_bootstrap(
    differences: Sequence[float], *, seed: int = 0, resamples: int = RESAMPLES
) -> tuple[float, float] | tuple[None, None]:
    """Return the 95 % percentile interval of the mean of per-task differences, tasks drawn with replacement.

    Two tasks are added to those drawn from, spread over gained, lost and two unchanged outcomes as Agresti
    and Min (2005) do for Wald's interval: it keeps a width where all tasks agree. It always contains the
    mean. None for fewer than two tasks. Equal seeds give equal intervals.
    """
    n = len(differences)
    if n < 2:
        return None, None
    weights = {1.0: 0.5, 0.0: 1.0, -1.0: 0.5}
    for difference in differences:
        weights[difference] = weights.get(difference, 0.0) + 1.0
    values = np.array(list(weights.keys()))
    shares = np.array(list(weights.values())) / (n + 2)
    means = np.sort(np.random.default_rng(seed).multinomial(n, shares, size=resamples) @ values / n)
    rank, mean = int(0.025 * resamples), statistics.fmean(differences)
    return min(mean, float(means[rank])), max(mean, float(means[-1 - rank]))


def _directed(changes: Sequence[TaskChange], sign: int) -> tuple[TaskChange, ...]:
    directed = [change for change in changes if sign * (change.after - change.before) > 0]
    return tuple(sorted(directed, key=lambda change: (-abs(change.after - change.before), change.task_id)))
