"""Comparison of two arms of an experiment over seeds, and the number of seeds that a gain needs.

Each seed gives one number per arm, such as the held-out solve rate at the end of training. Seeds of both arms
are paired: with n pairs, mean difference d and standard deviation s of the differences, the 95 % interval of
the true difference is d ± t·s / √n, with Student's t for n − 1 degrees of freedom.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from engine.evaluation.metrics import t_quantile

POWER = 0.8
"""Probability that a test shows the gain it was planned for."""
MAX_SEEDS = 10_000
ROUNDING = 1e-9
"""Relative spread below which numbers count as equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedComparison:
    """An arm against the baseline over the seeds that both have."""

    seeds: tuple[int, ...]
    difference: float
    """Mean over the seeds of arm minus baseline."""
    interval_low: float | None
    interval_high: float | None
    """95 % interval of the difference for seeds like these; None for a single seed or equal differences."""

    @property
    def is_distinguishable(self) -> bool:
        """Return whether the interval is known and excludes 0."""
        return excludes_zero(self.interval_low, self.interval_high)


def excludes_zero(low: float | None, high: float | None) -> bool:
    """Return whether an interval is known and excludes 0."""
    return low is not None and high is not None and (low > 0 or high < 0)


def compare_seeds(baseline: Mapping[int, float], arm: Mapping[int, float]) -> SeedComparison | None:
    """Compare the numbers of two arms, given by seed; None where they have no seed in common."""
    seeds = tuple(sorted(baseline.keys() & arm.keys()))
    if not seeds:
        return None
    differences = [arm[seed] - baseline[seed] for seed in seeds]
    low, high = mean_interval(differences)
    return SeedComparison(
        seeds=seeds,
        difference=statistics.fmean(differences),
        interval_low=low,
        interval_high=high,
    )


def mean_interval(values: Sequence[float]) -> tuple[float, float] | tuple[None, None]:
    """Return the 95 % interval of the mean of independent numbers, by Student's t.

    None for fewer than two numbers, and for equal ones: that a few seeds agree shows no spread, which is not
    a spread of 0.
    """
    n = len(values)
    deviation = statistics.stdev(values) if n > 1 else 0.0
    if deviation <= ROUNDING * max(map(abs, values), default=0.0):
        return None, None
    half = t_quantile(n - 1) * deviation / math.sqrt(n)
    mean = statistics.fmean(values)
    return mean - half, mean + half


def pooled_deviation(arms: Iterable[Sequence[float]]) -> float | None:
    """Return the standard deviation over seeds within arms; None where no arm has two seeds."""
    spread = [(len(values) - 1, statistics.variance(values)) for values in arms if len(values) > 1]
    degrees = sum(weight for weight, _ in spread)
    return math.sqrt(sum(weight * variance for weight, variance in spread) / degrees) if degrees else None


def smallest_gain(seeds: int, deviation: float) -> float | None:
    """Return the smallest difference that a paired test over n seeds shows; None for fewer than two.

    Two-sided at 5 %, with a power of 80 %: gain = √2 σ (t₀.₉₇₅ + t₀.₈) / √n, the normal approximation with
    Student's quantiles for n − 1 degrees of freedom in place of the normal ones. In simulations the power is
    73 % at 2 seeds, 77 % at 3, and 78 to 80 % above. √2 σ is the standard deviation of the difference of two
    arms whose seeds are independent.

    Args:
        seeds: number of seeds of each arm.
        deviation: standard deviation over seeds within an arm, σ.
    """
    if seeds < 2:
        return None
    quantiles = t_quantile(seeds - 1) + t_quantile(seeds - 1, POWER)
    return math.sqrt(2 / seeds) * deviation * quantiles


def seeds_needed(gain: float, deviation: float) -> int | None:
    """Return the fewest seeds that show a gain, by ``smallest_gain``; None for more than 10,000.

    Raises:
        ValueError: the gain is not positive and finite, or the deviation is negative or not finite.
    """
    if not (0 < gain < math.inf and 0 <= deviation < math.inf):
        raise ValueError(f"expected a gain above 0 and a deviation of at least 0, not {gain} and {deviation}")
    for seeds in range(2, MAX_SEEDS + 1):
        smallest = smallest_gain(seeds, deviation)
        if smallest is not None and smallest <= gain:
            return seeds
    return None
