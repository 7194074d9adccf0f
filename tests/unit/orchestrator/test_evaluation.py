"""Evaluation statistics, checked by hand, by brute force and by simulation."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.evaluation.attempts import is_solved
from engine.evaluation.metrics import EvaluationSummary, EvaluationTally, pass_at_k, solve_interval
from engine.types import Grade, TerminationReason, Trajectory, Verdict
from tests.unit.trainer.builders.rl_builders import make_trajectory


def attempts(table: dict[str, list[float | None]]) -> list[Trajectory]:
    return [
        make_trajectory(reward, index=i, task_id=task)
        for task, rewards in table.items()
        for i, reward in enumerate(rewards)
    ]


def summarise(trajectories: Iterable[Trajectory]) -> EvaluationSummary:
    tally = EvaluationTally()
    for one in trajectories:
        verdict = one.grade.verdict if one.grade is not None else None
        tally.add(one.key.task_id, solved=is_solved(one.termination, one.reward, verdict))
    return tally.summary()


def test_pass_at_1_weights_tasks_equally_and_excludes_infrastructure() -> None:
    trajectories = attempts({"a": [1.0, 1.0, 0.0, 0.0], "b": [1.0, None, None, None], "c": [None]})
    trajectories.append(make_trajectory(0.0, TerminationReason.ENV_ERROR, task_id="a", index=4))
    summary = summarise(trajectories)
    assert (summary.num_samples, summary.num_tasks, summary.num_solved) == (5, 2, 3)
    assert summary.num_infrastructure == 5
    assert summary.solve_rate == pytest.approx(0.75)
    assert 0 <= summary.interval_low < 0.75 < summary.interval_high <= 1


def test_only_the_verdict_decides_whether_a_rollout_is_solved() -> None:
    late = make_trajectory(1.0, TerminationReason.MAX_STEPS, task_id="a")
    partial = replace(make_trajectory(0.0, task_id="b"), grade=Grade(verdict=Verdict.FAILED, reward=0.5))
    assert summarise([late, partial]).num_solved == 1


def test_summary_without_graded_rollouts_has_the_widest_interval() -> None:
    summary = summarise(attempts({"a": [None, None]}))
    assert (summary.num_samples, summary.num_tasks, summary.solve_rate) == (0, 0, 0.0)
    assert (summary.interval_low, summary.interval_high, summary.num_infrastructure) == (0.0, 1.0, 2)


def test_more_attempts_at_the_same_tasks_do_not_narrow_the_interval() -> None:
    few = summarise(attempts({f"t{i}": [float(i % 2)] for i in range(20)}))
    many = summarise(attempts({f"t{i}": [float(i % 2)] * 50 for i in range(20)}))
    more_tasks = summarise(attempts({f"t{i}": [float(i % 2)] for i in range(400)}))
    width = few.interval_high - few.interval_low
    assert many.interval_high - many.interval_low == pytest.approx(width, rel=0.05)
    assert more_tasks.interval_high - more_tasks.interval_low < width / 3


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_interval_has_a_width_if_all_tasks_agree(reward: float) -> None:
    summary = summarise(attempts({f"t{i}": [reward] * 8 for i in range(16)}))
    assert summary.solve_rate == reward
    assert summary.interval_high - summary.interval_low > 0.1
    assert summary.interval_low <= reward <= summary.interval_high


def test_interval_matches_manual_computation() -> None:
    """Rates .4 and .6 with 0 and 1 added: s² = .52 / 3, n* = .25 · 4 / s², and t is 3.182."""

    def by_hand(n: float, t: float) -> object:
        half = t / (1 + t * t / n) * (0.25 / n + t * t / (4 * n * n)) ** 0.5
        return pytest.approx((0.5 - half, 0.5 + half), abs=2e-3)

    assert solve_interval([0.4, 0.6], 10_000) == by_hand(0.25 * 4 / (0.52 / 3), 3.182)
    assert solve_interval([0.4, 0.6] * 2, 10_000) == by_hand(0.25 * 6 / (0.54 / 5), 2.571)
    assert solve_interval([0.4, 0.6] * 20, 10_000) == by_hand(0.25 * 42 / (0.9 / 41), 2.0195)


def test_one_attempt_of_thousands_does_not_change_the_interval() -> None:
    all_failed = solve_interval([0.0] * 500, 8000)
    one_solved = solve_interval([0.0] * 499 + [1 / 16], 8000)
    assert one_solved[1] == pytest.approx(all_failed[1], rel=0.05)
    all_solved = solve_interval([1.0] * 20, 320)
    one_failed = solve_interval([1.0] * 19 + [15 / 16], 320)
    assert one_failed[0] == pytest.approx(all_solved[0], rel=0.02)


def test_interval_covers_the_true_rate_at_its_confidence_level() -> None:
    """Simulate tasks from a bimodal population of difficulties, with five attempts each."""
    rng = random.Random(0)
    for tasks in (6, 16, 48):
        hits = 0
        for _ in range(1000):
            rates = []
            for _ in range(tasks):
                chance = rng.betavariate(0.6, 0.9)
                rates.append(sum(rng.random() < chance for _ in range(5)) / 5)
            low, high = solve_interval(rates, 5 * tasks)
            hits += low <= 0.4 <= high
        assert 0.93 <= hits / 1000 <= 0.99, tasks


@given(st.lists(st.floats(0, 1), min_size=2, max_size=30))
def test_interval_contains_the_rate(rates: list[float]) -> None:
    low, high = solve_interval(rates, 4 * len(rates))
    assert 0 <= low <= sum(rates) / len(rates) + 1e-9
    assert sum(rates) / len(rates) - 1e-9 <= high <= 1


def test_pass_at_k_is_the_share_of_draws_with_a_success() -> None:
    for n in range(1, 8):
        for c in range(n + 1):
            for k in range(1, n + 1):
                draws = list(itertools.combinations([True] * c + [False] * (n - c), k))
                assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws), abs=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 1, 0), (4, 5, 1), (0, 0, 1)])
def test_pass_at_k_refuses_impossible_counts(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError):
        pass_at_k(n, c, k)
