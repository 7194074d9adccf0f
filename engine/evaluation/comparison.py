"""Two evaluations of the same tasks, task by task: difference, interval, McNemar, gained and lost tasks."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import comb

from engine.errors import DatasetError
from engine.evaluation.attempts import Attempt, graded_by_task, solve_share

RESAMPLES = 2000


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
    interval_low: float
    interval_high: float
    """95 % interval of ``difference`` for tasks like these, by a paired bootstrap over tasks."""
    gained: tuple[TaskChange, ...]
    """Tasks with a higher rate in the second, largest change first."""
    lost: tuple[TaskChange, ...]
    p_value: float
    """Two-sided exact McNemar test; with several attempts the sign test over tasks whose rates differ."""

    @property
    def unequal(self) -> bool:
        """Return whether a task was graded by one of the evaluations only."""
        return bool(self.only_first or self.only_second)


def compare(
    first: Iterable[Attempt], second: Iterable[Attempt], *, seed: int = 0, resamples: int = RESAMPLES
) -> Comparison:
    """Compare two evaluations over the tasks that both graded.

    Raises:
        DatasetError: no task was graded by both.
    """
    before = {task: solve_share(members) for task, members in graded_by_task(first).items()}
    after = {task: solve_share(members) for task, members in graded_by_task(second).items()}
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
        p_value=mcnemar(len(gained), len(lost)),
    )


def mcnemar(num_gained: int, num_lost: int) -> float:
    """Return the two-sided p-value of the exact McNemar test.

    A task that differs is as probably gained as lost under the null hypothesis; 1 where none differs.
    """
    n = num_gained + num_lost
    tail = sum(comb(n, i) for i in range(min(num_gained, num_lost) + 1))
    return min(1.0, 2 * tail / (1 << n))


def paired_bootstrap(
    differences: Sequence[float], *, seed: int = 0, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """Return the 95 % percentile interval of the mean of per-task differences, tasks drawn with replacement.

    −1 … 1 for fewer than two tasks, which say nothing about others. Equal seeds give equal intervals.
    """
    n = len(differences)
    if n < 2:
        return -1.0, 1.0
    generator = random.Random(seed)
    means = sorted(sum(generator.choices(differences, k=n)) / n for _ in range(resamples))
    rank = int(0.025 * resamples)
    return means[rank], means[-1 - rank]


def _directed(changes: Sequence[TaskChange], sign: int) -> tuple[TaskChange, ...]:
    found = [change for change in changes if sign * (change.after - change.before) > 0]
    return tuple(sorted(found, key=lambda change: (-abs(change.after - change.before), change.task_id)))
