"""AUC, calibration error and reliability against direct definitions."""

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
def test_auc_equals_the_share_of_pairs(forecasts: list[Forecast]) -> None:
    expected = brute_auc(forecasts)
    assert auc(forecasts) == (None if expected is None else pytest.approx(expected))


@given(FORECASTS, FORECASTS)
def test_within_groups_only_pairs_of_one_group_count(one: list[Forecast], other: list[Forecast]) -> None:
    weights = [sum(f.outcome for f in group) * sum(not f.outcome for f in group) for group in (one, other)]
    found = within_group_auc([one, other])
    if not sum(weights):
        assert found is None
        return
    parts = [weight * (brute_auc(group) or 0.0) for weight, group in zip(weights, (one, other), strict=True)]
    assert found == pytest.approx(sum(parts) / sum(weights))


def test_a_verifier_that_only_knows_which_tasks_are_easy_selects_by_chance() -> None:
    easy = [Forecast(0.9, True)] * 4 + [Forecast(0.9, False)]
    hard = [Forecast(0.1, False)] * 4 + [Forecast(0.1, True)]
    found = calibrate({"easy": easy, "hard": hard})
    assert found.auc == pytest.approx(0.8)
    assert found.within_group_auc == 0.5


def test_calibration_error_by_hand() -> None:
    forecasts = [Forecast(0.95, True), Forecast(0.91, False), Forecast(0.12, False), Forecast(1.0, True)]
    found = calibrate({"t": forecasts})
    top = abs(2 / 3 - (0.95 + 0.91 + 1.0) / 3)
    assert found.ece == pytest.approx(3 / 4 * top + 1 / 4 * 0.12)
    assert found.brier == pytest.approx((0.05**2 + 0.91**2 + 0.12**2) / 4)
    assert (found.count, found.num_positive) == (4, 2)


@given(FORECASTS, st.integers(1, 20))
def test_every_forecast_is_in_one_bin(forecasts: list[Forecast], num_bins: int) -> None:
    bins = reliability(forecasts, num_bins=num_bins)
    assert len(bins) == num_bins
    assert sum(one.count for one in bins) == len(forecasts)
    for one in bins:
        if one.count:
            assert one.mean_probability is not None
            assert one.low - 1e-9 <= one.mean_probability <= one.high + 1e-9
            values = [value for value in (one.rate_low, one.rate, one.rate_high) if value is not None]
            assert len(values) == 3
            assert values == sorted(values)
            assert 0 <= values[0] <= values[-1] <= 1
        else:
            assert one.rate is None


def test_without_forecasts_nothing_is_known() -> None:
    found = calibrate({})
    assert (found.count, found.auc, found.within_group_auc, found.ece, found.brier) == (0, *[None] * 4)
    assert brier_score([]) is None


def test_wilson_interval_of_a_known_case() -> None:
    low, high = wilson(8, 10)
    assert (low, high) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert math.isclose(wilson(0, 5)[0], 0.0)
