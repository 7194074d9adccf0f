"""Paired comparison of two evaluations."""

from __future__ import annotations

import itertools
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import DatasetError
from engine.evaluation.comparison import TaskChange, compare, paired_bootstrap, sign_test
from tests.unit.evaluation.test_repeats import attempts


def test_comparison_lists_gained_and_lost_tasks() -> None:
    first = attempts({"a": [True], "b": [False], "c": [False], "d": [True], "e": [False]})
    second = attempts({"a": [True], "b": [True], "c": [True], "d": [False], "e": [False]})
    compared = compare(first, second)
    assert [change.task_id for change in compared.gained] == ["b", "c"]
    assert compared.lost == (TaskChange(task_id="d", before=1.0, after=0.0),)
    assert (compared.rate_first, compared.rate_second) == (0.4, 0.6)
    assert compared.difference == pytest.approx(0.2)
    assert compared.interval_low is not None
    assert compared.interval_high is not None
    assert compared.interval_low <= 0.2 <= compared.interval_high
    assert (compared.test, compared.p_value) == ("McNemar", 1.0)
    assert (compared.num_shared, compared.unequal) == (5, False)


def test_repeated_attempts_are_compared_by_rate_with_the_largest_change_first() -> None:
    first = attempts({"a": [True, False], "b": [False, False], "c": [True, True]})
    second = attempts({"a": [True, True], "b": [True, True], "c": [True, True]})
    compared = compare(first, second)
    assert [(change.task_id, change.before, change.after) for change in compared.gained] == [
        ("b", 0.0, 1.0),
        ("a", 0.5, 1.0),
    ]
    assert compared.lost == ()
    assert compared.test == "sign"


def test_unequal_task_sets_are_compared_on_their_overlap_and_named() -> None:
    first = attempts({"a": [True], "b": [True], "lost": [None]})
    second = attempts({"b": [False], "c": [True], "lost": [True]})
    compared = compare(first, second)
    assert (compared.only_first, compared.only_second, compared.num_shared) == (("a",), ("c", "lost"), 1)
    assert compared.unequal
    assert (compared.rate_first, compared.rate_second) == (1.0, 0.0)


def test_evaluations_without_a_common_task_cannot_be_compared() -> None:
    with pytest.raises(DatasetError, match="graded 1 and 2 tasks and none of them in common"):
        compare(attempts({"a": [True]}), attempts({"b": [True], "c": [True]}))


def test_the_sign_test_by_hand() -> None:
    assert sign_test(5, 0) == 2 / 32
    assert sign_test(1, 8) == pytest.approx(2 * (1 + 9) / 512)
    assert 0 < sign_test(700, 900) < 1e-5


@given(gained=st.integers(0, 8), lost=st.integers(0, 8))
def test_the_sign_test_is_the_share_of_patterns_at_least_as_uneven(gained: int, lost: int) -> None:
    n = gained + lost
    uneven = [abs(2 * sum(signs) - n) >= abs(gained - lost) for signs in itertools.product((0, 1), repeat=n)]
    assert sign_test(gained, lost) == pytest.approx(statistics.fmean(uneven))


def test_the_bootstrap_agrees_with_theory_and_is_deterministic() -> None:
    state = random.Random(5)
    differences = [float(state.choice([-1, 0, 0, 0, 1, 1])) for _ in range(400)]
    low, high = paired_bootstrap(differences, seed=1, resamples=4000)
    assert low is not None
    mean, error = statistics.fmean(differences), statistics.stdev(differences) / 20
    assert low == pytest.approx(mean - 1.96 * error, abs=0.15 * error)
    assert high == pytest.approx(mean + 1.96 * error, abs=0.15 * error)
    assert paired_bootstrap(differences, seed=1, resamples=4000) == (low, high)
    assert paired_bootstrap([1.0]) == (None, None), "one task says nothing about others"


@pytest.mark.parametrize(("difference", "num_tasks"), [(0.0, 2), (1.0, 20), (-0.5, 20)])
def test_equal_differences_have_an_interval_of_positive_width(difference: float, num_tasks: int) -> None:
    low, high = paired_bootstrap([difference] * num_tasks)
    assert low is not None
    assert high is not None
    assert -1 <= low <= difference <= high <= 1
    assert high - low > 1 / num_tasks


def test_the_bootstrap_interval_covers_the_true_difference() -> None:
    """300 comparisons of 30 tasks, one in ten changed: 95 % of the intervals contain the true difference."""
    state = random.Random(3)
    covered = 0
    for seed in range(300):
        differences = [float(state.choices([-1, 0, 1], [0.03, 0.9, 0.07])[0]) for _ in range(30)]
        low, high = paired_bootstrap(differences, seed=seed, resamples=400)
        assert low is not None
        assert high is not None
        covered += low <= 0.04 <= high
    assert covered > 0.93 * 300


def test_pairing_detects_differences_that_two_intervals_miss() -> None:
    """Most tasks have equal outcomes in both; all changed tasks change in the same direction."""
    first = attempts({str(i): [i < 100] for i in range(200)})
    second = attempts({str(i): [i < 110] for i in range(200)})
    compared = compare(first, second)
    assert compared.interval_low is not None
    assert compared.interval_low > 0
    assert compared.p_value < 0.01
