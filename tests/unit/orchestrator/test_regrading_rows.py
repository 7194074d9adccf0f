"""Rows under which stored trajectories are graded again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.datasets.store import save_dataset
from engine.events.regrading import Obstacle
from engine.orchestrator.regrading.rows import DatasetRows, GradableRow, RowsOfRun
from engine.orchestrator.verification.stored_trajectories import StoredTrajectories
from engine.types import GradeRule, TaskRow
from tests.builders.rollout_builders import make_row
from tests.builders.verifier_builders import TASKS, Source


def gradable(task: str = TASKS[0], **answer: Any) -> TaskRow:
    row = make_row(task)
    tested = {"fail_to_pass": ("t::a",), "test_command": "pytest", "log_parser": "parse_log_pytest", **answer}
    return replace(row, answer=replace(row.answer, **tested))


def rows_of(home: Path, row: TaskRow | None = None, *, own_box: bool = True, **config: Any) -> RowsOfRun:
    """Return the rows for a run whose dataset holds ``row``."""
    source = Source(home)
    if row is not None:
        save_dataset(home, "toy", [row], {})
    given = {"seed": 0, "dataset": {"name": "toy"}, **config}
    (source.run_dir / "config.json").write_text(json.dumps(given))
    stored = StoredTrajectories(source.run_dir, home=home)
    return RowsOfRun(stored, DatasetRows(home, own_box=own_box), dataset="")


@pytest.mark.parametrize(
    ("answer", "obstacle"),
    [
        ({"grade_rule": GradeRule.GOAL}, Obstacle.ENVIRONMENT),
        ({"own_box": True, "log_parser": "", "grade_rule": GradeRule.EXIT_CODE}, Obstacle.OWN_SANDBOX),
        ({"metadata": {"ungradable": "its image is gone"}}, Obstacle.UNGRADABLE),
        ({"test_command": ""}, Obstacle.UNGRADABLE),
        ({}, None),
    ],
)
def test_row_that_cannot_grade_patches_names_its_obstacle(
    tmp_path: Path, answer: dict[str, Any], obstacle: Obstacle | None
) -> None:
    found = rows_of(tmp_path, gradable(**answer)).find(TASKS[0])
    assert (None if isinstance(found, GradableRow) else found.obstacle) is obstacle


def test_own_sandbox_is_no_obstacle_where_patches_are_graded_instead(tmp_path: Path) -> None:
    row = gradable(own_box=True, log_parser="", grade_rule=GradeRule.EXIT_CODE)
    assert isinstance(rows_of(tmp_path, row, own_box=False).find(TASKS[0]), GradableRow)


@pytest.mark.parametrize(
    ("environment", "obstacle"),
    [("reproduction", Obstacle.WRITTEN_TESTS), ("frozenlake", Obstacle.ENVIRONMENT)],
)
def test_rollouts_of_other_environments_are_refused(
    tmp_path: Path, environment: str, obstacle: Obstacle
) -> None:
    found = rows_of(tmp_path, gradable(), environment={"type": environment}).find(TASKS[0])
    assert not isinstance(found, GradableRow)
    assert found.obstacle is obstacle


def test_task_without_a_row_or_a_dataset_is_refused(tmp_path: Path) -> None:
    found = rows_of(tmp_path, gradable(), dataset={"name": "gone"}).find(TASKS[0])
    assert not isinstance(found, GradableRow)
    assert (found.obstacle, found.detail) == (Obstacle.NO_ROW, f"no row of 'gone' continues task {TASKS[0]}")
