"""Proofs of mutated tests in real sandboxes, and their stored references."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config.rollout import GradingConfig
from engine.config.sandbox import SandboxConfig
from engine.datasets.store import dataset_path, load_dataset, save_dataset, with_content_id
from engine.grading.counterfactual.base import MutantKind, variant_files
from engine.grading.counterfactual.prover import Prover
from engine.grading.counterfactual.store import FileReferences
from engine.grading.counterfactual.test_files import read_test_files
from engine.grading.execution import RunExecutor
from engine.orchestrator.tasks.references import make_references
from engine.patches.diff import diff_texts
from engine.sandbox.base import SandboxSpec
from engine.sandbox.local.backend import LocalBackend
from engine.types import TaskRow, Verdict
from tests.builders.dataset_builders import NUMBERS, TEST_NUMBERS, patched
from tests.builders.sandbox_builders import CountingBackend
from tests.integration.adversary.frame import under
from tests.integration.toy_yard import dataset_home

TESTS = "tests/test_numbers.py"


OTHER_SOLUTION = patched(
    NUMBERS.replace(
        "    if value > high:\n        return high\n    return value", "    return min(value, high)"
    )
)
SETTINGS = GradingConfig(timeout_s=60.0)
SANDBOX = SandboxConfig(memory_mb=256)


def prover(backend: LocalBackend) -> Prover:
    return Prover(backend=backend, config=SETTINGS, sandbox=SANDBOX, run_id="t")


def executor(home: Path) -> RunExecutor:
    return RunExecutor(backend=LocalBackend(home), config=SETTINGS, sandbox=SANDBOX, run_id="t")


async def test_test_file_with_several_paths_is_read_once(home: Path, row: TaskRow) -> None:
    hidden = (f"{row.task.workdir}/tests", "/testbed/linked")
    named = replace(row, answer=replace(row.answer, hidden_paths=hidden))
    async with LocalBackend(home).open(SandboxSpec(image=row.task.image)) as box:
        await box.exec("ln -s tests linked", timeout_s=60.0)
        files = await read_test_files(box, named)
    assert TESTS in files
    assert len({Path(name).name for name in files}) == len(files)


@pytest.mark.parametrize("rule", ["map", "exit code"])
async def test_other_solutions_fail_a_proven_variant(home: Path, row: TaskRow, rule: str) -> None:
    row = under(row, rule)
    reference = await prover(LocalBackend(home))(row)
    assert len(reference.variants) == 3
    assert set(reference.files) == {TESTS}
    assert reference.note == ""
    contents = [variant_files(reference, variant) for variant in reference.variants]
    assert len({tuple(content.values()) for content in contents}) == 3
    assert {kind for test, kind in reference.coverage.items() if "clamp" in test} == {MutantKind.VALUE}
    run = await executor(home).execute(row, OTHER_SOLUTION, timeout_s=60.0, overlay=contents[0])
    passed = {test.test_id for test in run.judgement.tests if test.outcome == "passed"}
    assert run.verdict is Verdict.FAILED
    assert reference.variants[0].must_fail
    assert not passed.intersection(reference.variants[0].must_fail)


async def test_proof_supports_scripts_that_restore_the_test_files(home: Path, row: TaskRow) -> None:
    row = under(row, "log")
    new, more = f"{TESTS}::test_new", "\n\ndef test_new():\n    assert clamp(12, 0, 10) == 10\n"
    script = (
        f"cp {TESTS} /tmp/base\ncat >> {TESTS} <<'MORE'\n{more}MORE\n"
        f"{row.answer.test_command}\ncp /tmp/base {TESTS}\n"
    )
    patch = diff_texts(TESTS, TEST_NUMBERS, TEST_NUMBERS + more)
    answer = replace(row.answer, test_command=script, test_patch=patch, fail_to_pass=(new,))
    row = replace(row, answer=answer)
    reference = await prover(LocalBackend(home))(row)
    assert b"test_new" in reference.files[TESTS]
    assert all(variant.must_fail == (new,) for variant in reference.variants)
    mutated = variant_files(reference, reference.variants[0])
    run = await executor(home).execute(row, row.answer.gold_patch, timeout_s=60.0, overlay=mutated)
    assert run.verdict is Verdict.FAILED


async def test_tasks_of_one_source_share_their_proof(home: Path, row: TaskRow) -> None:
    rows = list(split(row))
    save_dataset(home, "shared", rows, {})
    backend = CountingBackend(home)
    store = FileReferences(dataset_path(home, "shared"))
    reported: list[int] = []
    assert await make_references(rows, prover(backend), store, progress=reported.append) == []
    assert reported == [0, 2]
    assert backend.opened == 4, "one original run and one of each of three variants"
    for task in rows:
        reference = await store.load(task)
        assert reference is not None
        assert [set(variant.must_fail) for variant in reference.variants] == [{*task.answer.fail_to_pass}] * 3
    assert await make_references(rows, prover(backend), store, progress=reported.append) == []
    assert reported == [0, 2, 2]
    assert backend.opened == 4, "what is known is not proven again"


def split(row: TaskRow) -> Iterator[TaskRow]:
    """Yield two tasks on the same tree, each with its own required test."""
    for test in (row.answer.fail_to_pass[0], row.answer.pass_to_pass[0]):
        answer = replace(row.answer, fail_to_pass=(test,), pass_to_pass=())
        task_row = with_content_id(replace(row, answer=answer))
        yield replace(task_row, task=replace(task_row.task, instance_id=task_row.task.id))


async def test_curation_stores_references_of_its_tasks(tmp_path: Path) -> None:
    folder = dataset_home(tmp_path)
    (name,) = (path.name for path in (folder / "datasets").iterdir())
    store = FileReferences(dataset_path(folder, name))
    rows = load_dataset(folder, name).rows
    assert rows
    for row in rows:
        reference = await store.load(row)
        assert reference is not None
        assert set(reference.variants[0].must_fail) == set(row.answer.fail_to_pass)
