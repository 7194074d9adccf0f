"""Curves of whole tables, and R2E-Gym's published predictions."""

from __future__ import annotations

import json
import os
import random
import statistics
from pathlib import Path

import pytest

from engine.errors import ConfigError, DatasetError, MissingScoreError
from engine.verifiers.selection.candidates import Candidate
from engine.verifiers.selection.curves import Short, curves, unscored_tasks
from engine.verifiers.selection.r2e_predictions import published_curves
from engine.verifiers.selection.rules import EF, ORACLE, Hybrid
from engine.verifiers.selection.tables import read_table
from tests.unit.verifiers.brute_force import best_at_k

PREDICTIONS = os.environ.get("TRAINYARD_R2E_PREDICTIONS", "")
"""Path of the published file: R2E-Gym/32B_predictions, split ``predictions``."""


def rollouts(task: str, outcomes: list[tuple[bool, float]]) -> list[Candidate]:
    return [
        Candidate(task_id=task, trajectory_id=f"{task}{index}", resolved=resolved, p_yes=p_yes)
        for index, (resolved, p_yes) in enumerate(outcomes)
    ]


def test_curves_cover_the_rules_that_a_table_has_scores_for() -> None:
    table = rollouts("a", [(True, 0.9), (False, 0.1)]) + rollouts(
        "b", [(False, 0.9), (True, 0.1), (False, 0.0)]
    )
    by_rule = {curve.rule: curve for curve in curves(table)}
    assert set(by_rule) == {"ef", "oracle"}
    assert [point.k for point in by_rule["ef"].points] == [1, 2]
    assert [point.rate for point in by_rule["ef"].points] == pytest.approx(
        [(1 / 2 + 1 / 3) / 2, (1 + 1 / 3) / 2]
    )
    assert [point.rate for point in by_rule["oracle"].points] == pytest.approx(
        [(1 / 2 + 1 / 3) / 2, (1 + 2 / 3) / 2]
    )
    error = statistics.stdev([1 / 2, 1 / 3]) / 2**0.5
    assert by_rule["ef"].points[0].standard_error == pytest.approx(error)
    assert by_rule["ef"].num_tasks == 2


def test_a_score_that_only_some_rollouts_lack_is_an_error() -> None:
    table = rollouts("a", [(True, 0.9), (False, 0.1)])
    table.append(Candidate(task_id="a", trajectory_id="x", resolved=False))
    with pytest.raises(
        MissingScoreError, match="1 of 3 rollouts have no p_yes, such as trajectory x of task a"
    ):
        curves(table)


def test_k_beyond_the_rollouts_of_a_task_is_refused_or_marked() -> None:
    table = rollouts("a", [(True, 0.9)]) + rollouts("b", [(False, 0.9), (True, 0.1)])
    with pytest.raises(
        ConfigError, match="K = 2 is more than the rollouts of 1 of 2 tasks, such as a with 1"
    ):
        curves(table, ks=[1, 2])
    (curve,) = curves(table, [ORACLE], [1, 2], short=Short.ALL)
    assert [(point.k, point.rate, point.num_short) for point in curve.points] == [(1, 0.75, 0), (2, 1.0, 1)]
    (curve,) = curves(table, [ORACLE], [1, 2], short=Short.LEAVE_OUT)
    assert [(point.k, point.rate, point.num_short) for point in curve.points] == [(1, 0.5, 0), (2, 1.0, 0)]
    assert curve.num_tasks == 1
    with pytest.raises(ConfigError, match="of 2 of 2 tasks, such as a with 1; lower K to at most 2$"):
        curves(table, [ORACLE], [3], short=Short.LEAVE_OUT)


def test_a_short_task_that_is_left_out_needs_no_scores() -> None:
    table = rollouts("b", [(False, 0.9), (True, 0.1)])
    unscored = Candidate(task_id="a", trajectory_id="x", resolved=True)
    (curve,) = curves([unscored, *table], [EF], [2], short=Short.LEAVE_OUT)
    assert [point.rate for point in curve.points] == [0.0]


def test_unscored_tasks_are_those_with_an_unscored_rollout() -> None:
    table = rollouts("a", [(True, 0.9), (False, 0.1)]) + rollouts("b", [(True, 0.5)])
    table.append(Candidate(task_id="b", trajectory_id="x", resolved=False))
    assert unscored_tasks(table, [EF, ORACLE]) == {"b"}
    assert unscored_tasks(table, [ORACLE]) == frozenset()


def test_invalid_tables_and_values_of_k_are_refused() -> None:
    with pytest.raises(DatasetError, match="no rollouts"):
        curves([])
    twice = rollouts("a", [(True, 0.9)])
    with pytest.raises(DatasetError, match="trajectory a0 of task a occurs 2 times"):
        curves(twice + twice)
    with pytest.raises(ConfigError, match="at least 1"):
        curves(twice, ks=[0])


def predictions(path: Path, lengths: list[int]) -> Path:
    """Write a synthetic table with the columns and notation of the published one."""
    random_state = random.Random(3)
    with path.open("w") as lines:
        for number, length in enumerate(lengths):
            row = {
                "docker_image": f"image-{number}",
                "gt_rewards": repr([random_state.choice([0, 1]) for _ in range(length)]),
                "regression_rates": repr([random_state.choice([0.9, 1.0]) for _ in range(length)]),
                "mean_predicted_rewards": repr(
                    [random_state.choice([0.0, 0.25, 1.0]) for _ in range(length)]
                ),
                "avg_yes_prob": repr([round(random_state.random(), 1) for _ in range(length)]),
                "step_counts": repr([random_state.randint(5, 40) for _ in range(length)]),
            }
            lines.write(json.dumps(row) + "\n")
    return path


def test_predictions_of_r2e_gym_reproduce_the_curves_of_their_notebook(tmp_path: Path) -> None:
    table = read_table(predictions(tmp_path / "predictions.jsonl", [8, 6, 7]))
    assert len(table) == 21
    assert [row.steps for row in table[:8]] == [row.steps for row in table if row.task_id == "0"]
    by_rule = {curve.rule: curve for curve in published_curves(table)}
    assert list(by_rule) == ["oracle", "eb", "ef", "hybrid"]
    tasks = [[row for row in table if row.task_id == str(number)] for number in range(3)]
    for k in (1, 3, 6, 7):
        by_definition = [best_at_k(Hybrid(minimum=3), task, min(k, len(task))) for task in tasks]
        assert by_rule["hybrid"].points[k - 1].rate == pytest.approx(statistics.fmean(by_definition))
    assert [point.num_short for point in by_rule["hybrid"].points][5:9] == [0, 1, 2, 3]
    assert len(by_rule["hybrid"].points) == 26
    assert by_rule["eb"].points[25].rate == by_rule["eb"].points[8].rate


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("avg_yes_prob", "[0.1]", "differ in length"),
        ("avg_yes_prob", "[nan, 0.1]", "no list"),
        ("avg_yes_prob", "__import__('os').abort()", "no list"),
        ("step_counts", "[1, None]", "None is not a finite number"),
        ("avg_yes_prob", "[NaN, 0.1]", "nan is not a finite number"),
        ("gt_rewards", "[0.5, 1]", "0.5 is neither 0 nor 1"),
        ("avg_yes_prob", "[0.1, 1.5]", "p_yes = 1.5"),
        ("regression_rates", None, "no list"),
    ],
)
def test_malformed_predictions_are_refused_with_the_reason(
    tmp_path: Path, column: str, value: str | None, message: str
) -> None:
    path = predictions(tmp_path / "p.jsonl", [2, 2])
    first, second = path.read_text().splitlines()
    row = {**json.loads(second), column: value}
    path.write_text(f"{first}\n{json.dumps(row)}\n")
    with pytest.raises(DatasetError, match=message):
        read_table(path)


@pytest.mark.skipif(not PREDICTIONS, reason="TRAINYARD_R2E_PREDICTIONS names no file")
def test_the_published_file_reproduces_the_published_numbers() -> None:
    by_rule = {curve.rule: curve for curve in published_curves(read_table(Path(PREDICTIONS)))}
    published = {
        "hybrid": {6: 44.7, 11: 47.7, 16: 49.4, 21: 50.4, 26: 51.0},
        "eb": {6: 41.6, 11: 43.0, 16: 43.5, 21: 43.7, 26: 43.7},
        "ef": {6: 40.0, 11: 41.5, 16: 42.2, 21: 42.6, 26: 42.8},
    }
    for rule, numbers in published.items():
        rates = {k: 100 * by_rule[rule].points[k - 1].rate for k in numbers}
        assert rates == pytest.approx(numbers, abs=0.35)
