"""Comparison of arms over seeds, and the number of seeds that a gain needs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.evaluation.metrics import t_quantile
from engine.evaluation.seeds import (
    compare_seeds,
    mean_interval,
    pooled_deviation,
    seeds_needed,
    smallest_gain,
)


def test_quantiles_of_student_are_close_to_the_tables() -> None:
    tables = {
        0.975: {1: 12.7062, 2: 4.30265, 3: 3.18245, 4: 2.77645, 9: 2.26216, 30: 2.04227},
        0.8: {1: 1.37638, 2: 1.06066, 3: 0.97847, 9: 0.88340},
    }
    for probability, quantiles in tables.items():
        for degrees, expected in quantiles.items():
            tolerance = 1e-5 if degrees < 3 else 0.01
            assert t_quantile(degrees, probability) == pytest.approx(expected, rel=tolerance)


def test_seeds_are_paired() -> None:
    baseline = {0: 0.10, 1: 0.30, 2: 0.50, 7: 0.90}
    arm = {0: 0.12, 1: 0.32, 2: 0.53, 8: 0.1}
    change = compare_seeds(baseline, arm)
    assert change is not None
    assert change.seeds == (0, 1, 2)
    assert change.difference == pytest.approx(0.07 / 3)
    half = 4.30265 * math.sqrt(1e-4 / 3) / math.sqrt(3)
    assert change.interval_low == pytest.approx(change.difference - half, rel=1e-4)
    assert change.is_distinguishable, "the spread between seeds does not count"
    assert compare_seeds(baseline, {8: 1.0}) is None


def test_one_seed_and_equal_seeds_have_no_interval() -> None:
    change = compare_seeds({0: 0.1}, {0: 0.9})
    assert change is not None
    assert (change.interval_low, change.is_distinguishable) == (None, False)
    assert mean_interval([]) == (None, None)
    assert mean_interval([0.3 - 0.2, 0.4 - 0.3, 0.1]) == (None, None)
    low, high = mean_interval([1e6, 1e6 + 1])
    assert low is not None
    assert high is not None
    assert low < 1e6 < high


def test_deviation_is_that_within_arms() -> None:
    assert pooled_deviation([[0.1, 0.3], [10.1, 10.3, 10.2], [5.0]]) == pytest.approx(math.sqrt(0.04 / 3))
    assert pooled_deviation([[0.1], [0.2]]) is None


@given(gain=st.floats(1e-3, 10), deviation=st.floats(1e-3, 10))
def test_needed_seeds_are_the_fewest_that_show_the_gain(gain: float, deviation: float) -> None:
    needed = seeds_needed(gain, deviation)
    if needed is None:
        assert gain < deviation
        return
    smallest = smallest_gain(needed, deviation)
    assert smallest is not None
    assert smallest <= gain
    fewer = smallest_gain(needed - 1, deviation)
    assert fewer is None or fewer > gain


@settings(max_examples=12)
@given(seeds=st.integers(2, 24), deviation=st.floats(0.01, 5), seed=st.integers(0, 2**32 - 1))
def test_simulated_tests_show_the_smallest_gain_four_times_in_five(
    seeds: int, deviation: float, seed: int
) -> None:
    gain = smallest_gain(seeds, deviation)
    assert gain is not None
    random = np.random.default_rng(seed)
    arms = random.normal([[[0.0]], [[gain]]], deviation, size=(2, 20_000, seeds))
    differences = arms[1] - arms[0]
    errors = differences.std(axis=1, ddof=1) / math.sqrt(seeds)
    power = float(np.mean(np.abs(differences.mean(axis=1)) / errors > t_quantile(seeds - 1)))
    least = {2: 0.73, 3: 0.767}.get(seeds, 0.784)
    # Five standard errors of a simulated share.
    assert least - 0.015 < power < 0.815


def test_impossible_questions_are_refused() -> None:
    assert smallest_gain(1, 0.1) is None
    assert seeds_needed(1e-9, 1.0) is None
    assert seeds_needed(0.1, 0.0) == 2
    for gain, deviation in ((0.0, 1.0), (-1.0, 1.0), (math.nan, 1.0), (1.0, -1.0), (1.0, math.inf)):
        with pytest.raises(ValueError, match="expected a gain above 0"):
            seeds_needed(gain, deviation)
