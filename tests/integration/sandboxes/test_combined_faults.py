"""Curation of tasks with several faults of one file, in real sandboxes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NoReturn

import pytest

from engine.datasets.curation.faults import Fault, apply_fault
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


@pytest.fixture(scope="module")
def dataset(home: Path) -> Dataset:
    return asyncio.run(run(home, config(home, train_tasks=1, faults_per_task=2)))[0]


def test_a_task_names_all_its_faults_in_different_functions(dataset: Dataset) -> None:
    assert [row.split for row in dataset.rows] == ["train", "heldout"]
    for row in dataset.rows:
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


async def test_only_patches_that_mend_every_fault_pass(home: Path, dataset: Dataset) -> None:
    grader = make_grader(LocalBackend(home))

    async def verdicts(row: TaskRow) -> list[Verdict]:
        faults = row.answer.metadata["faults"]
        intact = (home / "toy" / faults[0]["path"]).read_text()
        broken, *alone = (apply(intact, chosen) for chosen in (faults, faults[:1], faults[1:]))
        patches = [diff_texts(faults[0]["path"], broken, partly) for partly in alone]
        plain = without_reuse(row)
        return [(await grader.grade(plain, p)).verdict for p in ("", *patches, row.answer.gold_patch)]

    expected = [Verdict.FAILED, Verdict.FAILED, Verdict.FAILED, Verdict.PASSED]
    assert await asyncio.gather(*map(verdicts, dataset.rows)) == [expected] * 2


def apply(source: str, faults: list[dict[str, str | int]]) -> str:
    for record in faults:
        fields = {name: record[name] for name in ("kind", "family", "line", "original", "mutated")}
        place = {"function": "", "function_first_line": 1, "function_last_line": 1}
        source = apply_fault(source, Fault(**fields, **place))  # type: ignore[arg-type]
    return source


def test_the_funnel_counts_faults_and_their_tasks(dataset: Dataset) -> None:
    funnel = {stage["stage"]: stage for stage in dataset.provenance["funnel"]}
    assert (funnel["wanted"]["reached"], dataset.provenance["tasks"]) == (4, 2)
    assert set(funnel["combined"]["lost"]) <= {"not_combined", "combination", "inert"}
    lost = sum(number for stage in funnel.values() for number in stage["lost"].values())
    assert funnel["faults"]["reached"] == 4 + lost


async def test_kept_trials_of_single_faults_and_combinations_are_reused(
    home: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_options: object) -> NoReturn:
        pytest.fail("a sandbox was opened")

    monkeypatch.setattr(LocalBackend, "open", refuse)
    again, _ = await run(home, config(home, train_tasks=1, faults_per_task=2, output="again"))
    assert again.rows == dataset.rows
    assert again.provenance["funnel"] == dataset.provenance["funnel"]
