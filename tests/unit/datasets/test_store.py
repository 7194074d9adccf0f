"""The dataset folder: round trip, atomic replacement, errors that name row and field."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from engine.datasets.store import dataset_path, load_dataset, save_dataset, with_content_id
from engine.errors import DatasetError
from engine.types import Task, TaskAnswer, TaskRow


def make_row(name: str, split: str = "train", gold: str = "diff") -> TaskRow:
    task = Task(
        id="", instance_id=name, repo="r", base_commit="c", problem_statement="a\u2028b", image="local:x",
        difficulty={"function_lines": 3},
    )  # fmt: skip
    answer = TaskAnswer(gold_patch=gold, fail_to_pass=("t::a",), test_files={"tests/t.py": "x"})
    return with_content_id(TaskRow(task=task, answer=answer, split=split))


def edit(home: Path, file: str, row: int, **changes: object) -> None:
    path = dataset_path(home, "d") / file
    lines = path.read_text().split("\n")
    data = json.loads(lines[row])
    for key, value in changes.items():
        data.pop(key) if value is None else data.update({key: value})
    lines[row] = json.dumps(data)
    path.write_text("\n".join(lines))


def test_rows_survive_the_round_trip(tmp_path: Path) -> None:
    rows = [make_row("a"), make_row("b", "heldout")]
    save_dataset(tmp_path, "d", rows, {"seed": 1})
    loaded = load_dataset(tmp_path, "d")
    assert loaded.rows == tuple(rows)
    assert loaded.provenance == {"seed": 1}
    assert [row.task.instance_id for row in loaded.split("heldout")] == ["b"]


def test_saving_replaces_a_dataset_without_leftovers(tmp_path: Path) -> None:
    save_dataset(tmp_path, "d", [make_row("a")], {})
    save_dataset(tmp_path, "d", [make_row("b")], {})
    assert [row.task.instance_id for row in load_dataset(tmp_path, "d").rows] == ["b"]
    assert [path.name for path in (tmp_path / "datasets").iterdir()] == ["d"]


def test_content_id_depends_on_task_and_answer() -> None:
    row = make_row("a")
    assert len(row.task.id) == 16
    assert with_content_id(row).task.id == row.task.id
    assert with_content_id(replace(row, answer=replace(row.answer, gold_patch="x"))).task.id != row.task.id


def test_rows_with_the_same_instance_id_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError) as raised:
        save_dataset(tmp_path, "d", [make_row("a"), make_row("a", gold="other")], {})
    assert (raised.value.row, raised.value.field) == (1, "instance_id")


@pytest.mark.parametrize(
    ("file", "changes", "field"),
    [
        ("tasks.jsonl", {"repo": None}, "repo"),
        ("tasks.jsonl", {"difficulty": {"x": "hard"}}, "difficulty.x"),
        ("tasks.jsonl", {"surprise": 1}, "surprise"),
        ("tasks.jsonl", {"split": None}, "split"),
        ("answers.jsonl", {"fail_to_pass": [1]}, "fail_to_pass.0"),
        ("answers.jsonl", {"id": "other"}, "id"),
    ],
)
def test_malformed_rows_are_named(tmp_path: Path, file: str, changes: dict[str, object], field: str) -> None:
    save_dataset(tmp_path, "d", [make_row("a"), make_row("b")], {})
    edit(tmp_path, file, 1, **changes)
    with pytest.raises(DatasetError) as raised:
        load_dataset(tmp_path, "d")
    assert (raised.value.row, raised.value.field) == (1, field)


def test_missing_datasets_splits_and_broken_lines_are_explained(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no dataset 'd'"):
        load_dataset(tmp_path, "d")
    save_dataset(tmp_path, "d", [make_row("a")], {})
    with pytest.raises(DatasetError, match="no split 'x'; it has: train"):
        load_dataset(tmp_path, "d").split("x")
    (dataset_path(tmp_path, "d") / "tasks.jsonl").write_text("{")
    with pytest.raises(DatasetError, match="not JSON"):
        load_dataset(tmp_path, "d")
