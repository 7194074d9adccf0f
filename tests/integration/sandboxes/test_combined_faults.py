"""Curation of tasks with several faults of one file, in real sandboxes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, NoReturn

import pytest

from engine.datasets.store import Dataset
from engine.patches.diff import diff_texts
from engine.sandbox.local.backend import LocalBackend
from engine.types import TaskRow, Verdict
from tests.builders.dataset_builders import make_grader, toolchain_or_skip, without_reuse, write_toy
from tests.integration.sandboxes.test_curation import config, run


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("combined")
    toolchain_or_skip(folder)
    write_toy(folder / "toy")
    return folder


async def curated(home: Path, output: str) -> Dataset:
    settings = config(home, train_tasks=1, heldout_tasks=0, faults_per_task=2, output=output)
    return (await run(home, settings))[0]


@pytest.fixture(scope="module")
def dataset(home: Path) -> Dataset:
    return asyncio.run(curated(home, "pairs"))


@pytest.fixture
def row(dataset: Dataset) -> TaskRow:
    (row,) = dataset.rows
    return row


def test_a_task_names_all_its_faults_in_different_functions(row: TaskRow) -> None:
    faults = row.answer.metadata["faults"]
    functions = row.task.metadata["function"].split(", ")
    assert len(faults) == len(set(functions)) == row.task.difficulty["num_faults"] == 2
    assert len({fault["path"] for fault in faults}) == 1
    stem = faults[0]["path"].removesuffix(".py").replace("/", "__")
    assert row.task.instance_id == f"{stem}-{faults[0]['line']}-{faults[1]['line']}"
    for fault, function in zip(faults, functions, strict=True):
        assert f"`{function}` (lines " in row.task.problem_statement
        assert f"line {fault['line']}: `{fault['mutated'].strip()}`" in row.task.problem_statement
        assert fault["original"].strip() not in row.task.problem_statement
        assert f"+{fault['original']}" in row.answer.gold_patch
    assert row.task.problem_statement.count("Failing: ") == 1
    assert row.task.difficulty["patch_lines"] == 4


async def test_only_a_patch_that_mends_every_fault_passes(home: Path, row: TaskRow) -> None:
    faults = row.answer.metadata["faults"]
    path, intact = faults[0]["path"], (home / "toy" / faults[0]["path"]).read_text()
    broken, *partly_broken = (with_faults(intact, kept) for kept in (faults, faults[:1], faults[1:]))
    patches = ["", *(diff_texts(path, broken, text) for text in partly_broken), row.answer.gold_patch]
    grader, plain = make_grader(LocalBackend(home)), without_reuse(row)
    grades = await asyncio.gather(*(grader.grade(plain, patch) for patch in patches))
    assert [grade.verdict for grade in grades] == [Verdict.FAILED] * 3 + [Verdict.PASSED]


def with_faults(source: str, faults: list[dict[str, Any]]) -> str:
    lines = source.split("\n")
    for fault in faults:
        assert lines[fault["line"] - 1] == fault["original"]
        lines[fault["line"] - 1] = fault["mutated"]
    return "\n".join(lines)


def test_the_funnel_counts_faults_and_their_tasks(dataset: Dataset) -> None:
    funnel = {stage["stage"]: stage for stage in dataset.provenance["funnel"]}
    assert (funnel["wanted"]["reached"], dataset.provenance["tasks"]) == (2, 1)
    assert set(funnel["combined"]["lost"]) <= {"not_combined", "combination", "inert"}
    lost = sum(number for stage in funnel.values() for number in stage["lost"].values())
    assert funnel["faults"]["reached"] == 2 + lost


async def test_kept_trials_of_single_faults_and_combinations_are_reused(
    home: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_options: object) -> NoReturn:
        pytest.fail("a sandbox was opened")

    monkeypatch.setattr(LocalBackend, "open", refuse)
    again = await curated(home, "again")
    assert again.rows == dataset.rows
    assert again.provenance["funnel"] == dataset.provenance["funnel"]
