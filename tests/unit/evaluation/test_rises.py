"""Rises over iterations: significance, chance, and values without spread."""

from __future__ import annotations

import random

import pytest

from engine.evaluation.rises import rise


def test_a_clear_rise_has_its_means_and_a_lower_bound() -> None:
    found = rise([0.1, 0.12, 0.08, 0.1], [0.3, 0.34, 0.28, 0.32], confidence=0.999)
    assert found is not None
    assert (found.before, found.after) == pytest.approx((0.1, 0.31))
    assert 0.1 < found.low < 0.21


def test_falls_small_rises_and_single_values_are_none() -> None:
    assert rise([0.3, 0.32, 0.31], [0.1, 0.12, 0.09], confidence=0.975) is None
    assert rise([0.1, 0.3, 0.2], [0.2, 0.3, 0.25], confidence=0.975) is None
    assert rise([0.1], [0.9, 0.9], confidence=0.975) is None


def test_equal_values_need_more_than_the_least_variance() -> None:
    assert rise([0.0] * 4, [0.5] * 4, confidence=0.999) is not None
    assert rise([0.0] * 4, [0.5] * 4, confidence=0.999, least_variance=0.2) is None


def test_chance_alone_is_rarely_a_rise() -> None:
    source = random.Random(7)
    runs = [[sum(source.random() < 0.1 for _ in range(32)) / 32 for _ in range(20)] for _ in range(2_000)]
    found = sum(
        rise(run[:10], run[10:], confidence=0.999, least_variance=0.09 / 32) is not None for run in runs
    )
    assert found <= 8
