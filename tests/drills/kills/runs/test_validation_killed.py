"""Validations that are killed and resumed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from engine.datasets.store import dataset_path, save_dataset
from engine.events.health import ValidationRecord, read
from engine.types import TaskRow
from tests.integration.grading.conftest import home, row
from tests.integration.grading.test_validation import config, variant
from tests.integration.toy_yard import events, finish, kill_when, make_run_dir

__all__ = ["home", "row"]


def test_killed_validation_resumes_without_repeating_rows(home: Path, row: TaskRow) -> None:
    rows = [variant(row, f"row-{number}") for number in range(8)]
    save_dataset(home, "killed", rows, {})
    folder = dataset_path(home, "killed")
    settings = config("killed", repeats=1)
    run_dir = make_run_dir(home, "killed", settings)
    kill_when(run_dir, lambda: len(_validations(folder)) >= 3)
    before = _by_task(folder)
    assert 3 <= len(before) < 8
    make_run_dir(home, "killed", settings, epoch=2)
    finish(run_dir)
    counted = Counter(record.task_id for record in _validations(folder))
    assert counted == {task_row.task.id: 1 for task_row in rows}
    assert {key: record for key, record in _by_task(folder).items() if key in before} == before
    last = events(run_dir)[-1]
    assert (last["state"], last["summary"]["rows"], last["summary"]["valid"]) == ("succeeded", 8, 8)


def _by_task(folder: Path) -> dict[str, ValidationRecord]:
    return {record.task_id: record for record in _validations(folder)}


def _validations(folder: Path) -> list[ValidationRecord]:
    return [record for record in read(folder) if isinstance(record, ValidationRecord)]
