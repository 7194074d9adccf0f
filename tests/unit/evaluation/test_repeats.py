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


def test_the_errors_by_hand() -> None:
    found = repeated_rate(attempts({"a": [True, False], "b": [True, True], "c": [False, False]}))
    assert (found.num_tasks, found.num_attempts, found.num_lost, found.rate) == (3, 6, 0, 0.5)
    assert [(run.index, run.num_attempts) for run in found.runs] == [(0, 3), (1, 3)]
    assert [run.rate for run in found.runs] == pytest.approx([2 / 3, 1 / 3])
    assert found.sampling_error == pytest.approx(math.sqrt(0.25 / 9))
    assert found.standard_error == pytest.approx(math.sqrt(0.25 / 3))
    assert found.task_error == pytest.approx(math.sqrt(0.25 / 3 - 0.25 / 9))
    assert found.interval_low is not None
    assert found.interval_high is not None
    assert found.interval_low < 0.5 < found.interval_high


def test_an_evaluation_of_five_hundred_tasks_once_has_the_known_error() -> None:
    """500 tasks once at 42.2 %: standard error 2.2 points, and nothing is known of sampling."""
    found = repeated_rate(attempts({str(i): [i < 211] for i in range(500)}))
    assert found.standard_error == pytest.approx(0.0221, abs=1e-4)
    assert found.sampling_error is None
    assert found.task_error is None
    assert found.interval_low == pytest.approx(0.379, abs=2e-3)
    assert found.interval_high == pytest.approx(0.465, abs=2e-3)


def test_lost_attempts_are_left_out_and_counted() -> None:
    found = repeated_rate(attempts({"a": [True, None], "b": [None, None], "c": [False, True, None]}))
    assert (found.num_tasks, found.num_attempts, found.num_lost) == (2, 3, 4)
    assert found.rate == pytest.approx(0.75)
    assert [(run.index, run.num_attempts, run.rate) for run in found.runs] == [(0, 2, 0.5), (1, 1, 1.0)]
    # c is known to vary by 1/2 · 1/2 · 2; a, tried once, counts as much
    assert found.sampling_error == pytest.approx(math.sqrt((0.5 / 1 + 0.5 / 2) / 4))


def test_nothing_graded() -> None:
    found = repeated_rate(attempts({"a": [None]}))
    assert (found.num_tasks, found.rate, found.runs) == (0, None, ())
    assert (found.interval_low, found.interval_high) == (None, None)
    assert found.standard_error is None


def test_runs_keep_their_numbers_when_the_first_attempts_are_lost() -> None:
    found = repeated_rate(attempts({"a": [None, True], "b": [None, False]}))
    assert [(run.index, run.rate) for run in found.runs] == [(1, 0.5)]
    found = repeated_rate(attempts({"a": [True, False]}))
    assert (found.rate, found.interval_low, found.interval_high) == (0.5, None, None), "of one task"


def test_sampling_alone_leaves_no_task_error_below_zero() -> None:
    found = repeated_rate(attempts({"a": [True, False], "b": [False, True]}))
    assert found.standard_error == 0
    assert found.task_error == 0
