"""pass@1 over repeated runs of one set of tasks, with separate sampling and task errors.

With m tasks, n_i graded attempts and the solve rate p_i of task i:

    sampling error²   1/m² · Σ p_i (1 − p_i) / (n_i − 1)     the same tasks sampled again
    standard error²   s²(p_i) / m                             other tasks like these, sampled once more
    task error²       standard error² − sampling error²       other tasks like these, sampled infinitely often

More attempts shrink the sampling error only, more tasks shrink both. The unbiased variance within tasks is
used rather than the spread of the runs' means, which estimates the same from R numbers only.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.evaluation.attempts import Attempt, graded_by_task, solve_share
from engine.evaluation.metrics import solve_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleRun:
    """All graded attempts with the same number."""

    index: int
    num_attempts: int
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedRate:
    """pass@1 of repeated runs; errors are standard errors of ``rate``."""

    num_tasks: int
    num_attempts: int
    """Graded attempts."""
    num_lost: int
    """Attempts lost to infrastructure, which are left out."""
    rate: float | None
    """Mean over tasks of their solve rates; None when nothing was graded."""
    interval_low: float | None
    interval_high: float | None
    """95 % interval of ``rate`` for tasks like these; None with fewer than two tasks."""
    standard_error: float | None
    """None with fewer than two tasks."""
    sampling_error: float | None
    """None where no task has two graded attempts."""
    task_error: float | None
    """0 where the spread between tasks is no larger than sampling explains; None where a part is unknown."""
    runs: tuple[SingleRun, ...]
    """Solve rate of each run, by number."""


def repeated_rate(attempts: Iterable[Attempt]) -> RepeatedRate:
    """Compute pass@1 and its errors."""
    attempts = list(attempts)
    tasks = list(graded_by_task(attempts).values())
    rates = [solve_share(members) for members in tasks]
    num_attempts = sum(map(len, tasks))
    low, high = solve_interval(rates, num_attempts) if len(rates) > 1 else (None, None)
    total = statistics.variance(rates) / len(rates) if len(rates) > 1 else None
    sampling = _sampling_variance(rates, [len(members) for members in tasks])
    between = max(0.0, total - sampling) if total is not None and sampling is not None else None
    return RepeatedRate(
        num_tasks=len(tasks),
        num_attempts=num_attempts,
        num_lost=len(attempts) - num_attempts,
        rate=statistics.fmean(rates) if rates else None,
        interval_low=low,
        interval_high=high,
        standard_error=_root(total),
        sampling_error=_root(sampling),
        task_error=_root(between),
        runs=_runs([attempt for members in tasks for attempt in members]),
    )


def _sampling_variance(rates: Sequence[float], sizes: Sequence[int]) -> float | None:
    """Return the sampling variance of the mean rate; a task with one attempt counts as the others' mean."""
    known = [rate * (1 - rate) * n / (n - 1) for rate, n in zip(rates, sizes, strict=True) if n > 1]
    if not known:
        return None
    usual = statistics.fmean(known)
    within = iter(known)
    return sum((next(within) if n > 1 else usual) / n for n in sizes) / len(sizes) ** 2


def _runs(attempts: Sequence[Attempt]) -> tuple[SingleRun, ...]:
    runs: dict[int, list[Attempt]] = {}
    for attempt in attempts:
        runs.setdefault(attempt.index, []).append(attempt)
    return tuple(
        SingleRun(index=index, num_attempts=len(members), rate=solve_share(members))
        for index, members in sorted(runs.items())
    )


def _root(variance: float | None) -> float | None:
    return None if variance is None else math.sqrt(variance)
