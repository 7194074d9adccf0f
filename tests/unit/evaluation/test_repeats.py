"""pass@1 of repeated runs: errors by hand and by simulation."""

from __future__ import annotations

import math

import pytest

from engine.evaluation.attempts import Attempt
from engine.evaluation.repeats import repeated_rate


def attempts(table: dict[str, list[bool | None]]) -> list[Attempt]:
    return [
        Attempt(task_id=task, index=index, solved=solved)
        for task, outcomes in table.items()
        for index, solved in enumerate(outcomes)
    ]


def test_errors_of_a_repeated_rate_by_hand() -> None:
    estimate = repeated_rate(attempts({"a": [True, False], "b": [True, True], "c": [False, False]}))
    assert (estimate.num_tasks, estimate.num_attempts, estimate.num_lost, estimate.rate) == (3, 6, 0, 0.5)
    assert [(run.index, run.num_attempts) for run in estimate.runs] == [(0, 3), (1, 3)]
    assert [run.rate for run in estimate.runs] == pytest.approx([2 / 3, 1 / 3])
    assert estimate.sampling_error == pytest.approx(math.sqrt(0.25 / 9))
    assert estimate.standard_error == pytest.approx(math.sqrt(0.25 / 3))
    assert estimate.task_error == pytest.approx(math.sqrt(0.25 / 3 - 0.25 / 9))
    assert estimate.interval_low is not None
    assert estimate.interval_high is not None
    assert estimate.interval_low < 0.5 < estimate.interval_high


def test_one_evaluation_of_500_tasks_has_the_known_standard_error() -> None:
    """500 tasks, each attempted once, at 42.2 %: standard error 2.2 points, sampling error unknown."""
    estimate = repeated_rate(attempts({str(i): [i < 211] for i in range(500)}))
    assert estimate.standard_error == pytest.approx(0.0221, abs=1e-4)
    assert estimate.sampling_error is None
    assert estimate.task_error is None
    assert estimate.interval_low == pytest.approx(0.379, abs=2e-3)
    assert estimate.interval_high == pytest.approx(0.465, abs=2e-3)


def test_lost_attempts_are_left_out_and_counted() -> None:
    estimate = repeated_rate(attempts({"a": [True, None], "b": [None, None], "c": [False, True, None]}))
    assert (estimate.num_tasks, estimate.num_attempts, estimate.num_lost) == (2, 3, 4)
    assert estimate.rate == pytest.approx(0.75)
    assert [(run.index, run.num_attempts, run.rate) for run in estimate.runs] == [(0, 2, 0.5), (1, 1, 1.0)]
    # the variance of c is 1/2 · 1/2 · 2; that of a, attempted once, is assumed to be equal
    assert estimate.sampling_error == pytest.approx(math.sqrt((0.5 / 1 + 0.5 / 2) / 4))


def test_a_rate_without_graded_attempts_is_unknown() -> None:
    estimate = repeated_rate(attempts({"a": [None]}))
    assert (estimate.num_tasks, estimate.rate, estimate.runs) == (0, None, ())
    assert (estimate.interval_low, estimate.interval_high) == (None, None)
    assert estimate.standard_error is None


def test_runs_keep_their_numbers_if_the_first_attempts_are_lost() -> None:
    estimate = repeated_rate(attempts({"a": [None, True], "b": [None, False]}))
    assert [(run.index, run.rate) for run in estimate.runs] == [(1, 0.5)]
    estimate = repeated_rate(attempts({"a": [True, False]}))
    assert (estimate.rate, estimate.interval_low, estimate.interval_high) == (0.5, None, None), "of one task"


def test_the_task_error_is_never_negative() -> None:
    estimate = repeated_rate(attempts({"a": [True, False], "b": [False, True]}))
    assert estimate.standard_error == 0
    assert estimate.task_error == 0
