"""Results of an experiment: each arm over its finished seeds, and against the baseline."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from engine.evaluation.comparison import paired_bootstrap
from engine.evaluation.seeds import (
    SeedComparison,
    compare_seeds,
    excludes_zero,
    pooled_deviation,
    smallest_gain,
)
from webapp.experiments import selectors as reads
from webapp.experiments.contexts.arms import ArmRow
from webapp.runs.models.iterations import Evaluation
from webapp.runs.selectors import iterations as iteration_reads
from webapp.runs.selectors import runs as run_reads
from webapp.runs.services.states import S

HELDOUT_RATE = "held-out solve rate"
REWARD_AT_END = "mean reward of the last iterations"
LEAST_TASKS = 2
"""Fewest common tasks over which solve rates are compared."""
WIDTH = 200
"""Width of the forest plot, in its own units."""


@dataclass(frozen=True, slots=True)
class ForestBar:
    """Places of an interval and its mean in the forest plot, from 0 to ``WIDTH``."""

    low: float
    mean: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResult:
    """An arm over the seeds whose runs have succeeded and have a result."""

    row: ArmRow
    values: Mapping[int, float]
    """Result by seed."""
    is_baseline: bool
    change: SeedComparison | None
    """Against the baseline over the seeds of both, and over the tasks that all their evaluations graded.

    None for the baseline and without such seeds.
    """
    task_low: float | None
    task_high: float | None
    """95 % interval of the change over tasks, where the same tasks were evaluated; else None."""
    num_tasks: int
    """Tasks that all compared evaluations graded."""
    is_rate: bool
    """Whether the results are solve rates of evaluations, which compare only over common tasks."""

    @property
    def difference(self) -> float | None:
        """Return the mean change against the baseline."""
        return self.change.difference if self.change is not None else None

    @property
    def interval_low(self) -> float | None:
        """Return the lower end of the interval of the change over seeds."""
        return self.change.interval_low if self.change is not None else None

    @property
    def interval_high(self) -> float | None:
        """Return the upper end of the interval of the change over seeds."""
        return self.change.interval_high if self.change is not None else None

    @property
    def mean(self) -> float | None:
        """Return the mean over seeds."""
        return statistics.fmean(self.values.values()) if self.values else None

    @property
    def lowest(self) -> float | None:
        """Return the lowest result of a seed."""
        return min(self.values.values(), default=None)

    @property
    def highest(self) -> float | None:
        """Return the highest result of a seed."""
        return max(self.values.values(), default=None)

    @property
    def verdict(self) -> str:
        """Return the conclusion in words; a difference needs intervals over seeds and tasks without 0."""
        if self.is_baseline:
            return "baseline"
        if self.change is None:
            return "no finished seed shared with the baseline"
        if len(self.change.seeds) == 1:
            return "one seed: no conclusion"
        if self.is_rate and self.num_tasks < LEAST_TASKS:
            return "different tasks: no conclusion"
        if self.change.interval_low is None:
            return "the same change in all seeds: no interval"
        tasks_agree = not self.is_rate or excludes_zero(self.task_low, self.task_high)
        if not (self.change.is_distinguishable and tasks_agree):
            return "indistinguishable"
        return "higher" if self.change.difference > 0 else "lower"


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Arms of an experiment, the baseline first."""

    metric: str
    is_rate: bool
    """Whether the metric is a share, shown in percent."""
    arms: tuple[ArmResult, ...]
    bars: tuple[ForestBar | None, ...]
    """One for each arm; None without an interval."""
    scale: float
    """Difference at the right end of the forest plot; its left end is the negative of it."""
    deviation: float | None
    """Standard deviation over seeds within arms; None where no arm has two results."""
    num_results: int
    """Results of the arms that have at least two, from which ``deviation`` follows."""
    gain: float | None
    """Smallest gain that a comparison over the seeds of the design shows."""

    @property
    def num_comparisons(self) -> int:
        """Return the number of arms that share at least two finished seeds with the baseline."""
        return sum(arm.change is not None and len(arm.change.seeds) > 1 for arm in self.arms)

    @property
    def rows(self) -> tuple[tuple[ArmResult, ForestBar | None], ...]:
        """Return the arms with their bars."""
        return tuple(zip(self.arms, self.bars, strict=True))


def build_results(arms: tuple[ArmRow, ...]) -> Results | None:
    """Return the results of the arms; None before a run with a result has succeeded.

    The result of a run is the solve rate of its newest held-out evaluation; where no run has one, the mean
    reward of its last ten iterations.
    """
    succeeded = {
        cell.run.pk: (row.arm.name, cell.seed)
        for row in arms
        for cell in row.cells
        if cell.run is not None and cell.run.state == S.SUCCEEDED
    }
    newest = run_reads.newest_heldout(list(succeeded))
    by_run = {number: evaluation.solve_rate for number, evaluation in newest.items()}
    by_run = by_run or reads.rewards_at_end(list(succeeded))
    if not by_run:
        return None
    values: dict[str, dict[int, float]] = {row.arm.name: {} for row in arms}
    evaluations: dict[str, dict[int, Evaluation]] = {row.arm.name: {} for row in arms}
    for number, value in by_run.items():
        arm, seed = succeeded[number]
        values[arm][seed] = value
        if number in newest:
            evaluations[arm][seed] = newest[number]
    rates = iteration_reads.task_rates(list(newest.values()))
    baseline = arms[0].arm.name
    compared = tuple(
        _result(row, baseline, values, evaluations, rates, is_baseline=row is arms[0], is_rate=bool(newest))
        for row in arms
    )
    deviation = pooled_deviation([list(members.values()) for members in values.values()])
    scale = _scale(compared, is_rate=bool(newest))
    return Results(
        metric=HELDOUT_RATE if newest else REWARD_AT_END,
        is_rate=bool(newest),
        arms=compared,
        bars=tuple(_bar(result.change, scale) for result in compared),
        scale=scale,
        deviation=deviation,
        num_results=sum(len(members) for members in values.values() if len(members) > 1),
        gain=smallest_gain(len(arms[0].cells), deviation) if deviation is not None else None,
    )


def _result(
    row: ArmRow,
    baseline: str,
    values: Mapping[str, Mapping[int, float]],
    evaluations: Mapping[str, Mapping[int, Evaluation]],
    rates: Mapping[int, Mapping[str, float]],
    *,
    is_baseline: bool,
    is_rate: bool,
) -> ArmResult:
    name = row.arm.name
    change = None if is_baseline else compare_seeds(values[baseline], values[name])
    differences: list[float] = []
    if change is not None and is_rate:
        pairs = [
            (rates[evaluations[baseline][seed].pk], rates[evaluations[name][seed].pk])
            for seed in change.seeds
        ]
        graded = [set(rates_of) for pair in pairs for rates_of in pair]
        tasks = sorted(set[str].intersection(*graded))
        differences = [
            statistics.fmean(second[task] - first[task] for first, second in pairs) for task in tasks
        ]
        if tasks and any(len(keys) > len(tasks) for keys in graded):
            first, second = (
                {
                    seed: statistics.fmean(pair[side][task] for task in tasks)
                    for seed, pair in zip(change.seeds, pairs, strict=True)
                }
                for side in (0, 1)
            )
            change = compare_seeds(first, second)
    low, high = paired_bootstrap(differences)
    return ArmResult(
        row=row,
        values=values[name],
        is_baseline=is_baseline,
        change=change,
        task_low=low,
        task_high=high,
        num_tasks=len(differences),
        is_rate=is_rate,
    )


def _scale(results: tuple[ArmResult, ...], *, is_rate: bool) -> float:
    ends = [
        abs(end)
        for result in results
        if result.change is not None
        for end in (result.change.difference, result.change.interval_low, result.change.interval_high)
        if end is not None
    ]
    widest = max(ends, default=0.0) or 1.0
    return min(1.0, widest) if is_rate else widest


def _bar(change: SeedComparison | None, scale: float) -> ForestBar | None:
    if change is None or change.interval_low is None or change.interval_high is None:
        return None

    def place(value: float) -> float:
        return round(WIDTH / 2 * (1 + max(-1.0, min(1.0, value / scale))), 1)

    return ForestBar(place(change.interval_low), place(change.difference), place(change.interval_high))
