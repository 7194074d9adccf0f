"""References on disk: round trips, edited rows, damaged files, marks of caught tasks."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

from engine.datasets.health import row_content
from engine.datasets.store import dataset_path, save_dataset
from engine.events.health import MutantCoverage, ProofRecord, read
from engine.grading.counterfactual.base import Mutant, MutantKind, Reference, Variant
from engine.grading.counterfactual.store import FileReferences
from engine.types import Task, TaskAnswer, TaskRow, TestOutcome

ROW = TaskRow(
    task=Task(id="a", instance_id="a", repo="r", base_commit="", problem_statement="p", image="i"),
    answer=TaskAnswer(gold_patch="diff"),
    split="train",
)
MUTANT = Mutant(
    path="t.py", function="test_a", line=1, kind=MutantKind.VALUE, before="1", after="2", start=0, end=1,
    replacement="2", parameters=(("1", "2"),),
)  # fmt: skip
REFERENCE = Reference(
    content=row_content(ROW),
    outcomes={"test_a[1]": TestOutcome.PASSED},
    files={"t.py": b"1\xff"},
    variants=(Variant(mutants=(MUTANT,), must_fail=("test_a[1]",), renamed=(("test_a[1]", "test_a[2]"),)),),
    coverage={"test_a[1]": MutantKind.VALUE, "test_b": None},
)


async def test_a_stored_reference_round_trips(tmp_path: Path) -> None:
    store = FileReferences(tmp_path)
    assert await store.load(ROW) is None
    await store.save(ROW, REFERENCE)
    assert await FileReferences(tmp_path).load(ROW) == REFERENCE
    (file,) = (tmp_path / "references").glob("*.json.gz")
    assert file.stat().st_mode & 0o077 == 0
    (record,) = read(tmp_path)
    assert isinstance(record, ProofRecord)
    assert record.coverage == MutantCoverage(value=1, none=1, variants=1)


async def test_only_unchanged_rows_keep_their_reference(tmp_path: Path) -> None:
    save_dataset(tmp_path, "d", [ROW], {})
    store = FileReferences(dataset_path(tmp_path, "d"))
    await store.save(ROW, REFERENCE)
    save_dataset(tmp_path, "d", [ROW], {"imported": "again"})
    assert await store.load(ROW) == REFERENCE
    changed = replace(ROW, answer=replace(ROW.answer, gold_patch="another"))
    assert await store.load(changed) is None


async def test_damaged_files_and_other_formats_are_ignored(tmp_path: Path) -> None:
    store = FileReferences(tmp_path)
    await store.save(ROW, REFERENCE)
    (path,) = (tmp_path / "references").glob("*.json.gz")
    content = json.loads(gzip.decompress(path.read_bytes()))
    path.write_bytes(gzip.compress(json.dumps({**content, "format": content["format"] - 1}).encode()))
    assert await store.load(ROW) is None
    path.write_bytes(b"damaged")
    assert await store.load(ROW) is None


async def test_marks_of_caught_tasks_persist_despite_a_damaged_line(tmp_path: Path) -> None:
    assert await FileReferences(tmp_path).marks() == {}
    await FileReferences(tmp_path).mark(ROW, "r1")
    await FileReferences(tmp_path).mark(ROW, "r2")
    with (tmp_path / "references/caught.jsonl").open("a") as file:
        file.write('{"task": "b"')
    assert await FileReferences(tmp_path).marks() == {"a": frozenset({"r1", "r2"})}
