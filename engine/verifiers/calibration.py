"""Calibration of probabilities against outcomes: AUC, expected calibration error, Brier score, reliability.

Pure functions over forecasts; nothing here loads a model.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, sqrt

_Z = 1.959963984540054
"""Quantile of the normal distribution for 95 % intervals."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """A predicted probability and its outcome."""

    probability: float
    """0 … 1, e.g. P(YES) of a verifier."""
    outcome: bool
    """E.g. whether the trajectory resolved its task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityBin:
    """Forecasts of similar probability in a reliability diagram."""

    low: float
    high: float
    """Probabilities from ``low`` to below ``high``; the last bin includes 1."""
    count: int
    mean_probability: float | None
    """None in an empty bin."""
    rate: float | None
    """Share of positive outcomes; None in an empty bin."""
    rate_low: float | None
    rate_high: float | None
    """Wilson's 95 % interval of the rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Calibration of a set of forecasts."""

    count: int
    num_positive: int
    auc: float | None
    """Probability that a positive outcome has a higher forecast than a negative one; None without both."""
    within_group_auc: float | None
    """The same over pairs of one group (task) only, which is what selection relies on."""
    ece: float | None
    """Expected calibration error; None without forecasts."""
    brier: float | None
    """Mean squared error of the probabilities; None without forecasts."""
    bins: tuple[ReliabilityBin, ...]


def calibrate(groups: Mapping[str, Sequence[Forecast]], *, num_bins: int = 10) -> Calibration:
    """Return the calibration of forecasts that belong to groups, e.g. to tasks."""
    forecasts = [forecast for members in groups.values() for forecast in members]
    bins = reliability(forecasts, num_bins=num_bins)
    return Calibration(
        count=len(forecasts),
        num_positive=sum(forecast.outcome for forecast in forecasts),
        auc=auc(forecasts),
        within_group_auc=within_group_auc(groups.values()),
        ece=calibration_error(bins),
        brier=brier_score(forecasts),
        bins=bins,
    )


def auc(forecasts: Iterable[Forecast]) -> float | None:
    """Return the area under the ROC curve, ties counted half; None unless both outcomes occur."""
    wins, pairs = _pairs(forecasts)
    return wins / pairs if pairs else None


def within_group_auc(groups: Iterable[Sequence[Forecast]]) -> float | None:
    """Return the share of pairs within a group that are ordered correctly, ties counted half."""
    counted = [_pairs(group) for group in groups]
    pairs = sum(count for _, count in counted)
    return fsum(wins for wins, _ in counted) / pairs if pairs else None


def _pairs(forecasts: Iterable[Forecast]) -> tuple[float, int]:
    """Return the number of (positive, negative) pairs that are ordered correctly, and of all pairs."""
    ordered: dict[bool, list[float]] = {True: [], False: []}
    for forecast in forecasts:
        ordered[forecast.outcome].append(forecast.probability)
    negatives = sorted(ordered[False])
    wins = fsum(
        (bisect_left(negatives, positive) + bisect_right(negatives, positive)) / 2
        for positive in ordered[True]
    )
    return wins, len(negatives) * len(ordered[True])


def brier_score(forecasts: Sequence[Forecast]) -> float | None:
    """Return the mean squared difference of probability and outcome; None without forecasts."""
    if not forecasts:
        return None
    return fsum((forecast.probability - forecast.outcome) ** 2 for forecast in forecasts) / len(forecasts)


def calibration_error(bins: Sequence[ReliabilityBin]) -> float | None:
    """Return Σ n_b / N · |rate_b − mean probability_b|; None without forecasts."""
    total = sum(group.count for group in bins)
    if not total:
        return None
    return (
        fsum(
            group.count * abs(group.rate - group.mean_probability)
            for group in bins
            if group.rate is not None and group.mean_probability is not None
        )
        / total
    )


def reliability(forecasts: Iterable[Forecast], *, num_bins: int = 10) -> tuple[ReliabilityBin, ...]:
    """Return bins of equal width, for a reliability diagram."""
    members: list[list[Forecast]] = [[] for _ in range(num_bins)]
    for forecast in forecasts:
        members[min(int(forecast.probability * num_bins), num_bins - 1)].append(forecast)
    return tuple(_bin(index / num_bins, (index + 1) / num_bins, group) for index, group in enumerate(members))


def _bin(low: float, high: float, members: Sequence[Forecast]) -> ReliabilityBin:
    count, positive = len(members), sum(forecast.outcome for forecast in members)
    interval = wilson(positive, count) if count else (None, None)
    return ReliabilityBin(
        low=low,
        high=high,
        count=count,
        mean_probability=fsum(forecast.probability for forecast in members) / count if count else None,
        rate=positive / count if count else None,
        rate_low=interval[0],
        rate_high=interval[1],
    )


def wilson(positive: int, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share; ``count`` is at least 1."""
    share, spread = positive / count, _Z**2 / count
    centre = (share + spread / 2) / (1 + spread)
    half = _Z * sqrt(share * (1 - share) / count + spread / (4 * count)) / (1 + spread)
    return max(min(centre - half, share), 0.0), min(max(centre + half, share), 1.0)  # against rounding
