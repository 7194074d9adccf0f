"""Rows that later versions of a dataset replaced."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from engine.datasets import replaced
from engine.datasets.replaced import RowIdentity
from engine.datasets.store import dataset_path, save_dataset, with_content_id
from engine.types import TaskRow
from tests.builders.rollout_builders import make_row


def version(row: TaskRow, number: int) -> TaskRow:
    return with_content_id(replace(row, answer=replace(row.answer, fail_to_pass=(f"test_{number}",))))


def test_rows_of_all_earlier_versions_are_kept_by_id(tmp_path: Path) -> None:
    first, second, third = (version(make_row(), number) for number in range(3))
    for row in (first, second, third):
        save_dataset(tmp_path, "d", [row], {})
    rows = replaced.read(dataset_path(tmp_path, "d"))
    assert rows == {row.task.id: RowIdentity.of(row) for row in (first, second)}
    assert {row.tree for row in rows.values()} == {RowIdentity.of(third).tree}, "only the tests differ"
    save_dataset(tmp_path, "d", [first], {})
    assert replaced.read(dataset_path(tmp_path, "d")).keys() == {second.task.id, third.task.id}


def test_tree_depends_on_what_agents_start_with() -> None:
    row = make_row()
    others = (
        replace(row, task=replace(row.task, image="local:other")),
        replace(row, task=replace(row.task, base_commit="1" * 40)),
        replace(row, answer=replace(row.answer, setup_patch="diff")),
    )
    trees = {RowIdentity.of(other).tree for other in (row, *others)}
    assert len(trees) == 4


def test_damaged_rows_do_not_keep_a_dataset_from_being_replaced(tmp_path: Path) -> None:
    save_dataset(tmp_path, "d", [make_row()], {})
    folder = dataset_path(tmp_path, "d")
    tasks = (folder / "tasks.jsonl").read_bytes()
    unhashable = json.dumps({**json.loads(tasks), "id": []}).encode()
    deep = b"[" * 100_000
    (folder / "tasks.jsonl").write_bytes(
        b"\n".join([b'{"id": [], "image": 1}', b"\xff{", unhashable, deep, tasks])
    )
    (folder / "answers.jsonl").write_bytes(b"{}\n{}\n{}\n{}\n[]\n")
    damaged = ['{"id": "x"}', "[]", '{"id": "x", "instance_id": [], "tree": ""}', "[" * 100_000]
    (folder / replaced.FILE).write_text("\n".join(damaged))
    save_dataset(tmp_path, "d", [make_row("b" * 16)], {})
    assert replaced.read(dataset_path(tmp_path, "d")) == {}
