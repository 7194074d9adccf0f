"""Test of whether a quantity is higher in later iterations than in earlier ones."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from engine.evaluation.metrics import t_quantile


@dataclass(frozen=True, slots=True)
class Rise:
    """Means of earlier and of later iterations."""

    before: float
    after: float
    low: float
    """Lower bound of their difference at the chosen confidence, one-sided."""


def rise(
    before: Sequence[float], after: Sequence[float], *, confidence: float, least_variance: float = 0.0
) -> Rise | None:
    """Compare earlier and later iterations; None unless the later values are significantly higher.

    Iterations are the units of a t-test with pooled variance, because the rollouts of a group are not
    independent.

    Args:
        before: values of the earlier iterations, at least two.
        after: values of the later ones, at least two.
        confidence: one-sided, such as 0.975.
        least_variance: smallest variance that is assumed, for iterations that agree by chance.
    """
    if min(len(before), len(after)) < 2:
        return None
    degrees = len(before) + len(after) - 2
    spread = (len(before) - 1) * statistics.variance(before) + (len(after) - 1) * statistics.variance(after)
    variance = max(spread / degrees, least_variance)
    error = math.sqrt(variance * (1 / len(before) + 1 / len(after)))
    first, last = statistics.fmean(before), statistics.fmean(after)
    low = last - first - t_quantile(degrees, confidence) * error
    return Rise(first, last, low) if low > 0 else None
