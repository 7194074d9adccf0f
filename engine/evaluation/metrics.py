"""Metrics of an evaluation: pass@1 with a confidence interval, and the unbiased pass@k.

The question is how the policy does on *other tasks like these*, so tasks are the sampled units: several
attempts at one task are one observation of it, not several. To add a statistic: a pure function here.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PassAtK:
    """Unbiased probability that at least one of k attempts solves a task, averaged over tasks."""

    k: int
    rate: float
    interval_low: float
    interval_high: float
    """95 % interval of ``rate``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSummary:
    """pass@1 over the graded trajectories of one evaluation."""

    num_samples: int
    """Graded trajectories, without those lost to infrastructure."""
    num_tasks: int
    num_solved: int
    """Trajectories with the verdict ``passed``, however they ended."""
    solve_rate: float
    """Mean over tasks of the share of solved attempts; 0 when nothing was graded."""
    interval_low: float
    interval_high: float
    """95 % interval of ``solve_rate``; 0 … 1 when fewer than two tasks were graded."""
    num_infrastructure: int
    """Trajectories excluded because they were lost to infrastructure."""
    pass_at_k: tuple[PassAtK, ...] = ()
    """pass@k for k = 1, 2, 4, … up to the smallest number of graded attempts of any task."""


@dataclass(slots=True)
class TaskTally:
    """Counts of one task's attempts."""

    graded: int = 0
    solved: int = 0
    cut_short: int = 0
    """Graded attempts that a time limit ended unsolved."""
    lost: int = 0
    """Attempts lost to infrastructure."""

    @property
    def rate(self) -> float:
        """Return the share of graded attempts that solved the task."""
        return self.solved / self.graded


class EvaluationTally:
    """Counts of attempts by task; an evaluation keeps nothing else of its trajectories."""

    def __init__(self) -> None:
        self.tasks: dict[str, TaskTally] = {}

    def add(self, task_id: str, *, solved: bool | None, cut_short: bool = False) -> None:
        """Count an attempt.

        Args:
            task_id: the task that was attempted.
            solved: None when infrastructure lost it or its grading.
            cut_short: see ``engine.types.is_cut_short``.
        """
        task = self.tasks.setdefault(task_id, TaskTally())
        task.lost += solved is None
        task.graded += solved is not None
        task.solved += solved is True
        task.cut_short += cut_short

    @property
    def graded(self) -> list[TaskTally]:
        """Return the tasks with graded attempts."""
        return [task for task in self.tasks.values() if task.graded]

    def summary(self) -> EvaluationSummary:
        """Return the metrics; the order of the attempts does not change them."""
        tasks = self.graded
        rates = [task.rate for task in tasks]
        num_samples = sum(task.graded for task in tasks)
        low, high = solve_interval(rates, num_samples)
        return EvaluationSummary(
            num_samples=num_samples,
            num_tasks=len(tasks),
            num_solved=sum(task.solved for task in tasks),
            solve_rate=statistics.fmean(rates) if rates else 0.0,
            interval_low=low,
            interval_high=high,
            num_infrastructure=sum(task.lost for task in self.tasks.values()),
            pass_at_k=_pass_at_powers(tasks),
        )


def _pass_at_powers(tasks: Collection[TaskTally]) -> tuple[PassAtK, ...]:
    points = []
    k, fewest = 1, min((task.graded for task in tasks), default=0)
    while k <= fewest:
        rates = [pass_at_k(task.graded, task.solved, k) for task in tasks]
        # k attempts are one observation of pass@k, so a task has graded // k independent ones.
        low, high = solve_interval(rates, sum(task.graded // k for task in tasks))
        points.append(PassAtK(k=k, rate=statistics.fmean(rates), interval_low=low, interval_high=high))
        k *= 2
    return tuple(points)


def solve_interval(rates: Sequence[float], num_samples: int) -> tuple[float, float]:
    """Return the 95 % interval of the mean of per-task solve rates.

    Wilson's score interval at the effective sample size n* = q(1 − q) / SE², SE² = s² / (m + 2), with
    Student's t for m + 1 degrees of freedom (Korn and Graubard 1998; Wilson 1927). q and s² are of the m
    rates and two added tasks, one never and one always solved, as Agresti and Coull (1998) add trials:
    without them a few tasks that happen to agree would suggest certainty. n* is at most the number of
    samples. Unlike p ± t·SE the interval stays inside 0 … 1 and does not shrink to a point when all agree.
    """
    m = len(rates)
    if m < 2:
        return 0.0, 1.0
    p = statistics.fmean(rates)
    padded = [*rates, 0.0, 1.0]
    q = statistics.fmean(padded)
    n = min(float(num_samples), q * (1 - q) * (m + 2) / statistics.variance(padded))
    t = t_quantile(m + 1)
    shrink = 1 + t * t / n
    centre = (p + t * t / (2 * n)) / shrink
    half = t / shrink * math.sqrt(p * (1 - p) / n + t * t / (4 * n * n))
    return max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half))


def pass_at_k(num_samples: int, num_solved: int, k: int) -> float:
    """Return the unbiased probability that one of k attempts solves a task: 1 − C(n − c, k) / C(n, k).

    The product form 1 − Π_{i=n−c+1}^{n} (1 − k / i) never builds large numbers (Chen et al. 2021,
    arXiv:2107.03374).

    Raises:
        ValueError: fewer than k samples, or more solved than sampled.
    """
    if not 1 <= k <= num_samples:
        raise ValueError(f"pass@{k} needs 1 ≤ k ≤ the number of samples, which is {num_samples}")
    if not 0 <= num_solved <= num_samples:
        raise ValueError(f"{num_solved} solved out of {num_samples} samples")
    if num_samples - num_solved < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(num_samples - num_solved + 1, num_samples + 1))


def t_quantile(degrees: int, probability: float = 0.975) -> float:
    """Return Student's t at a probability, within 1 % of it: exact for 1 and 2 degrees of freedom.

    Above that by the expansion of Cornish and Fisher.
    """
    if degrees == 1:
        return math.tan(math.pi * (probability - 0.5))
    if degrees == 2:
        return (2 * probability - 1) / math.sqrt(2 * probability * (1 - probability))
    z, v = statistics.NormalDist().inv_cdf(probability), degrees
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )
