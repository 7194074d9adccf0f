"""Breakdown of an evaluation by parts, budgets, submissions and spending."""

from __future__ import annotations

from operator import attrgetter

import pytest

from engine.evaluation.attempts import Attempt
from engine.evaluation.breakdown import budget_curve, parts, spending, submissions
from engine.types import TerminationReason
from tests.unit.evaluation.test_repeats import attempts


def test_parts_weight_tasks_equally_and_are_sorted_by_size() -> None:
    table = attempts({"a": [True, True, False, False], "b": [True], "c": [False], "d": [None]})
    django, flask = parts(table, {"a": "django", "b": "django", "c": "flask", "d": "lost"})
    assert (django.name, django.num_tasks, django.num_attempts, django.num_solved) == ("django", 2, 5, 3)
    assert django.rate == 0.75
    assert (flask.name, flask.rate, flask.interval_low, flask.interval_high) == ("flask", 0.0, None, None)


def test_submissions_separate_attempts_ended_by_a_limit() -> None:
    table = [
        Attempt(task_id="a", solved=True),
        Attempt(task_id="a", solved=True, termination=TerminationReason.MAX_STEPS),
        Attempt(task_id="b", solved=False, termination=TerminationReason.MAX_STEPS),
        Attempt(task_id="b", solved=False),
        Attempt(task_id="c", solved=None, termination=TerminationReason.MAX_STEPS),
    ]
    counts = submissions(table)
    assert (counts.submitted_solved, counts.ended_solved) == (1, 1)
    assert (counts.submitted_unsolved, counts.ended_unsolved) == (1, 1)
    assert (counts.rate, counts.deliberate_rate) == (0.5, 0.25)


def test_budget_curve_counts_attempts_that_ended_within_the_budget() -> None:
    table = [
        Attempt(task_id="a", solved=True, steps=5),
        Attempt(task_id="a", solved=True, steps=20),
        Attempt(task_id="b", solved=False, steps=10),
        Attempt(task_id="b", solved=None, steps=1),
    ]
    curve = budget_curve(table, attrgetter("steps"), [20, 5, 10, 4])
    assert [(point.budget, point.rate, point.ended) for point in curve] == [
        (4, 0.0, 0.0),
        (5, 0.25, 0.25),
        (10, 0.25, 0.75),
        (20, 0.5, 1.0),
    ]


def test_spending_counts_lost_attempts_and_unknown_prices() -> None:
    table = [
        Attempt(task_id="a", solved=True, seconds=60.0, cost=0.5),
        Attempt(task_id="a", solved=None, seconds=30.0, cost=0.1),
        Attempt(task_id="b", solved=True, seconds=30.0, cost=0.2),
    ]
    total = spending(table)
    assert (total.num_solved, total.seconds, total.seconds_per_solved) == (2, 120.0, 60.0)
    assert total.cost == pytest.approx(0.8)
    assert total.cost_per_solved == pytest.approx(0.4)
    unknown = spending([*table, Attempt(task_id="c", solved=False)])
    assert unknown.cost == pytest.approx(0.8), "one unknown price hides no known one"
    assert unknown.cost_per_solved == pytest.approx(0.4)
    assert unknown.num_unpriced == 1
    free = spending([Attempt(task_id="c", solved=True)])
    assert (free.cost, free.cost_per_solved, free.num_unpriced) == (None, None, 1)
    nothing = spending([Attempt(task_id="c", solved=False, cost=1.0)])
    assert (nothing.cost, nothing.cost_per_solved, nothing.seconds_per_solved) == (1.0, None, None)
