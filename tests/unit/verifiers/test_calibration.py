"""AUC, calibration error and reliability compared with direct definitions."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.verifiers.calibration import (
    Forecast,
    auc,
    brier_score,
    calibrate,
    reliability,
    wilson,
    within_group_auc,
)

FORECASTS = st.lists(st.builds(Forecast, st.floats(0, 1), st.booleans()), max_size=40)


def brute_auc(forecasts: list[Forecast]) -> float | None:
    pairs = [(a, b) for a in forecasts if a.outcome for b in forecasts if not b.outcome]
    wins = [
        1.0 if a.probability > b.probability else 0.5 if a.probability == b.probability else 0.0
        for a, b in pairs
    ]
    return sum(wins) / len(wins) if wins else None


@given(FORECASTS)
def test_auc_equals_the_share_of_correctly_ordered_pairs(forecasts: list[Forecast]) -> None:
    expected = brute_auc(forecasts)
    assert auc(forecasts) == (None if expected is None else pytest.approx(expected))


@given(FORECASTS, FORECASTS)
def test_within_group_auc_counts_only_pairs_of_one_group(one: list[Forecast], other: list[Forecast]) -> None:
    weights = [sum(f.outcome for f in group) * sum(not f.outcome for f in group) for group in (one, other)]
    measured = within_group_auc([one, other])
    if not sum(weights):
        assert measured is None
        return
    parts = [weight * (brute_auc(group) or 0.0) for weight, group in zip(weights, (one, other), strict=True)]
    assert measured == pytest.approx(sum(parts) / sum(weights))


def test_knowing_only_which_tasks_are_easy_has_a_within_group_auc_of_one_half() -> None:
    easy = [Forecast(0.9, True)] * 4 + [Forecast(0.9, False)]
    hard = [Forecast(0.1, False)] * 4 + [Forecast(0.1, True)]
    calibration = calibrate({"easy": easy, "hard": hard})
    assert calibration.auc == pytest.approx(0.8)
    assert calibration.within_group_auc == 0.5


def test_calibration_error_by_hand() -> None:
    forecasts = [Forecast(0.95, True), Forecast(0.91, False), Forecast(0.12, False), Forecast(1.0, True)]
    calibration = calibrate({"t": forecasts})
    top = abs(2 / 3 - (0.95 + 0.91 + 1.0) / 3)
    assert calibration.ece == pytest.approx(3 / 4 * top + 1 / 4 * 0.12)
    assert calibration.brier == pytest.approx((0.05**2 + 0.91**2 + 0.12**2) / 4)
    assert (calibration.count, calibration.num_positive) == (4, 2)


@given(FORECASTS, st.integers(1, 20))
def test_every_forecast_is_in_one_bin(forecasts: list[Forecast], num_bins: int) -> None:
    bins = reliability(forecasts, num_bins=num_bins)
    assert len(bins) == num_bins
    assert sum(bin_.count for bin_ in bins) == len(forecasts)
    for bin_ in bins:
        if bin_.count:
            assert bin_.mean_probability is not None
            assert bin_.low - 1e-9 <= bin_.mean_probability <= bin_.high + 1e-9
            values = [value for value in (bin_.rate_low, bin_.rate, bin_.rate_high) if value is not None]
            assert len(values) == 3
            assert values == sorted(values)
            assert 0 <= values[0] <= values[-1] <= 1
        else:
            assert bin_.rate is None


def test_calibration_without_forecasts_is_unknown() -> None:
    empty = calibrate({})
    assert (empty.count, empty.auc, empty.within_group_auc, empty.ece, empty.brier) == (0, *[None] * 4)
    assert brier_score([]) is None


def test_wilson_interval_of_a_known_case() -> None:
    low, high = wilson(8, 10)
    assert (low, high) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert math.isclose(wilson(0, 5)[0], 0.0)
