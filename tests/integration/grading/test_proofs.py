"""Proofs of mutated tests in real sandboxes, and the references that are kept of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config.rollout import GradingConfig
from engine.config.sandbox import SandboxConfig
from engine.datasets.health import row_content
from engine.datasets.store import dataset_path, load_dataset, save_dataset, with_content_id
from engine.errors import DatasetError
from engine.grading.counterfactual.base import MutantKind, Reference, variant_files
from engine.grading.counterfactual.prover import Prover
from engine.grading.counterfactual.store import FileReferences
from engine.grading.counterfactual.test_files import read_test_files
from engine.grading.execution import RunExecutor
from engine.orchestrator.curate import make_dataset
from engine.orchestrator.tasks.references import make_references
from engine.patches.diff import diff_texts
from engine.sandbox.base import SandboxSpec
from engine.sandbox.local.backend import LocalBackend
from engine.types import TaskRow, Verdict
from tests.builders.dataset_builders import NUMBERS, TEST_NUMBERS, patched, write_toy
from tests.builders.sandbox_builders import CountingBackend
from tests.integration.adversary.frame import under
from tests.integration.toy_yard import curation, open_context

TESTS = "tests/test_numbers.py"
OTHER_TESTS = '''"""Methods of unittest, a test that is expected to fail, and one without an assertion."""
import unittest

import pytest

from toy.numbers import clamp, mean


class ClampTest(unittest.TestCase):
    def test_high(self):
        self.assertEqual(clamp(11, 0, 10), 10)

    def test_raises(self):
        with self.assertRaises(ZeroDivisionError):
            mean([])


@pytest.mark.xfail(strict=True)
def test_wrong():
    assert clamp(1, 0, 10) == 2


def test_nothing():
    for value in mean, clamp:
        value.__name__
'''
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


async def test_test_file_of_several_names_is_read_once(home: Path, row: TaskRow) -> None:
    hidden = (f"{row.task.workdir}/tests", "/testbed/linked")
    named = replace(row, answer=replace(row.answer, hidden_paths=hidden))
    async with LocalBackend(home).open(SandboxSpec(image=row.task.image)) as box:
        await box.exec("ln -s tests linked", timeout_s=60.0)
        files = await read_test_files(box, named)
    assert TESTS in files
    assert len({Path(name).name for name in files}) == len(files)


@pytest.mark.parametrize("rule", ["map", "exit code"])
async def test_other_solutions_fail_every_proven_variant(home: Path, row: TaskRow, rule: str) -> None:
    row = under(row, rule)
    reference = await prover(LocalBackend(home))(row)
    assert len(reference.variants) == 3
    assert set(reference.files) == {TESTS}
    assert reference.note == ""
    contents = [variant_files(reference, variant) for variant in reference.variants]
    assert len({tuple(content.values()) for content in contents}) == 3
    assert {kind for test, kind in reference.coverage.items() if "clamp" in test} == {MutantKind.VALUE}
    for variant, content in zip(reference.variants, contents, strict=True):
        run = await executor(home).execute(row, OTHER_SOLUTION, timeout_s=60.0, overlay=content)
        passed = {test.test_id for test in run.judgement.tests if test.outcome == "passed"}
        assert run.verdict is Verdict.FAILED
        assert variant.must_fail
        assert not passed.intersection(variant.must_fail)


async def test_script_may_put_other_tests_back_after_its_end(home: Path, row: TaskRow) -> None:
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


async def test_coverage_names_the_best_kind_of_each_test(home: Path, row: TaskRow) -> None:
    path = "tests/test_more.py"
    names = ("ClampTest::test_high", "ClampTest::test_raises", "test_nothing")
    tests = tuple(f"{path}::{name}" for name in names)
    command = row.answer.test_command.replace(TESTS, path)
    answer = replace(
        row.answer, test_files={path: OTHER_TESTS}, fail_to_pass=tests, pass_to_pass=(), test_command=command
    )
    reference = await prover(LocalBackend(home))(replace(row, answer=answer))
    kinds = (MutantKind.VALUE, MutantKind.CHANGED, MutantKind.ADDED)
    assert reference.coverage == dict(zip(tests, kinds, strict=True))


async def test_row_whose_gold_patch_does_not_pass_has_no_reference(home: Path, row: TaskRow) -> None:
    wrong = replace(row, answer=replace(row.answer, gold_patch=patched("value = 1\n")))
    with pytest.raises(DatasetError, match="does not pass with its gold patch"):
        await prover(LocalBackend(home))(wrong)


async def test_references_are_kept_for_unchanged_rows_when_a_dataset_is_replaced(
    home: Path, row: TaskRow
) -> None:
    reference = Reference(content=row_content(row), files={TESTS: b"\0\xff"}, note="n")
    save_dataset(home, "kept", [row], {})
    folder = dataset_path(home, "kept")
    store = FileReferences(folder)
    await store.save(row, reference)
    save_dataset(home, "kept", [row], {"imported": "again"})

    assert await store.load(row) == reference
    changed = replace(row, answer=replace(row.answer, timeout_s=9.0))
    assert await store.load(changed) is None
    (file,) = (folder / "references").iterdir()
    assert file.stat().st_mode & 0o077 == 0
    file.write_bytes(file.read_bytes()[:100])
    assert await store.load(row) is None


async def test_tasks_of_one_source_share_their_proof(home: Path, row: TaskRow) -> None:
    rows = list(split(row))
    save_dataset(home, "shared", rows, {})
    backend = CountingBackend(home)
    store = FileReferences(dataset_path(home, "shared"))
    assert await make_references(rows, prover(backend), store) == []
    assert backend.opened == 4, "one original run and one of each of three variants"
    for one in rows:
        reference = await store.load(one)
        assert reference is not None
        assert [set(variant.must_fail) for variant in reference.variants] == [{*one.answer.fail_to_pass}] * 3
    assert await make_references(rows, prover(backend), store) == []
    assert backend.opened == 4, "what is known is not proven again"


def split(row: TaskRow) -> Iterator[TaskRow]:
    """Yield tasks on the same tree with a test of their own."""
    for test in (row.answer.fail_to_pass[0], row.answer.pass_to_pass[0]):
        answer = replace(row.answer, fail_to_pass=(test,), pass_to_pass=())
        one = with_content_id(replace(row, answer=answer))
        yield replace(one, task=replace(one.task, instance_id=one.task.id))


async def test_curated_tasks_have_references_from_the_start(home: Path) -> None:
    settings = curation(write_toy(home / "curated"))
    with open_context(home, "curate", settings) as run:
        await make_dataset(settings, run)

    rows = load_dataset(home, settings.curation.output).rows
    store = FileReferences(dataset_path(home, settings.curation.output))
    assert len(rows) == 3
    for one in rows:
        reference = await store.load(one)
        assert reference is not None
        assert set(reference.variants[0].must_fail) == set(one.answer.fail_to_pass)
