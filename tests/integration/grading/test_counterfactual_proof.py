"""References of rows, proven in real sandboxes under every grade rule, and kept beside the rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine.config.rollout import GradingConfig
from engine.config.sandbox import SandboxConfig
from engine.datasets.store import dataset_path, load_dataset, save_dataset, with_content_id
from engine.errors import DatasetError
from engine.grading.counterfactual.base import MutantKind, Reference, Variant, variant_files, variant_row
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
from tests.integration.adversary.frame import RULES, toy_row, under
from tests.integration.toy_yard import curation, open_context

TESTS = "tests/test_numbers.py"
REFERENCE_TESTS = '''"""Methods of unittest, and a test that is expected to fail."""
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


@pytest.fixture(scope="module")
def row(home: Path) -> TaskRow:
    return toy_row(home)


SETTINGS = GradingConfig(timeout_s=60.0)


async def test_a_test_file_of_several_names_is_read_once(home: Path, row: TaskRow) -> None:
    hidden = (f"{row.task.workdir}/tests", "/testbed/linked")
    named = replace(row, answer=replace(row.answer, hidden_paths=hidden))
    async with LocalBackend(home).open(SandboxSpec(image=row.task.image)) as box:
        await box.exec("ln -s tests linked", timeout_s=60.0)
        files = await read_test_files(box, named)
    assert TESTS in files
    assert len({Path(name).name for name in files}) == len(files)


def prover(home: Path) -> Prover:
    return Prover(
        backend=LocalBackend(home), config=SETTINGS, sandbox=SandboxConfig(memory_mb=256), run_id="t"
    )


async def false_runs(
    home: Path, row: TaskRow, reference: Reference, patch: str
) -> list[tuple[Verdict, set[str]]]:
    """Return verdict and passed tests of a run of every variant."""
    runs = RunExecutor(
        backend=LocalBackend(home), config=SETTINGS, sandbox=SandboxConfig(memory_mb=256), run_id="t"
    )
    found = []
    for variant in (*reference.variants, *reference.decoys):
        run = await runs.execute(
            variant_row(row, variant), patch, timeout_s=60.0, overlay=variant_files(reference, variant)
        )
        names = {name: test for test, name in variant.renamed}
        passed = {test.test_id for test in run.judgement.tests if test.outcome == "passed"}
        found.append((run.verdict, {names.get(test, test) for test in passed}))
    return found


@pytest.mark.parametrize("rule", RULES)
async def test_every_rule_has_three_variants_that_other_honest_solutions_fail(
    home: Path, row: TaskRow, rule: str
) -> None:
    row = under(row, rule)
    reference = await prover(home)(row)

    assert len(reference.variants) == 3
    assert set(reference.files) == {TESTS}
    assert reference.note == ""
    kinds = [{mutant.kind for mutant in variant.mutants} for variant in reference.variants]
    in_words = {MutantKind.VALUE, MutantKind.NEAR, MutantKind.TRUE}
    assert kinds == [in_words, in_words, {MutantKind.CHANGED}]
    assert [variant.quiet for variant in reference.variants] == [True, True, False]
    assert len({tuple(variant_files(reference, variant).values()) for variant in reference.variants}) == 3
    must_fail = [set(variant.must_fail) for variant in reference.variants]
    assert all(must_fail)
    (decoy,) = reference.decoys
    assert all("test_clamp" not in test for test in decoy.must_fail)
    clamps = {test for test in must_fail[0] if "test_clamp" in test}
    assert must_fail[0] - clamps == must_fail[1] - clamps == set(decoy.must_fail), "others in all alike"
    assert [true_texts(variant) for variant in reference.variants[:2]] == [true_texts(decoy)] * 2
    assert set(reference.coverage.values()) <= {MutantKind.VALUE, MutantKind.CHANGED}

    other = patched(
        NUMBERS.replace(
            "    if value > high:\n        return high\n    return value", "    return min(value, high)"
        )
    )
    found = await false_runs(home, row, reference, other)
    assert [verdict for verdict, _ in found] == [Verdict.FAILED] * 4
    for (_, passed), variant in zip(found, (*reference.variants, decoy), strict=True):
        assert not passed.intersection(variant.must_fail)
        assert set(reference.outcomes) - {*variant.must_fail, *variant.doubtful} <= passed
    *_, (_, passed) = await false_runs(home, row, reference, "")
    assert not clamps <= passed, "who solves nothing fails what a decoy leaves true"


def true_texts(variant: Variant) -> list[str]:
    return sorted(mutant.after for mutant in variant.mutants if mutant.kind is MutantKind.TRUE)


async def test_a_script_may_put_other_tests_back_after_its_end(home: Path, row: TaskRow) -> None:
    row = under(row, "log")
    new, more = f"{TESTS}::test_new", "\n\ndef test_new():\n    assert clamp(12, 0, 10) == 10\n"
    script = (
        f"cp {TESTS} /tmp/base\ncat >> {TESTS} <<'MORE'\n{more}MORE\n"
        f"{row.answer.test_command}\ncp /tmp/base {TESTS}\n"
    )
    patch = diff_texts(TESTS, TEST_NUMBERS, TEST_NUMBERS + more)
    answer = replace(row.answer, test_command=script, test_patch=patch, fail_to_pass=(new,))
    row = replace(row, answer=answer)
    reference = await prover(home)(row)
    assert b"test_new" in reference.files[TESTS]
    assert all(new in variant.must_fail for variant in reference.variants)
    runs = RunExecutor(
        backend=LocalBackend(home), config=SETTINGS, sandbox=SandboxConfig(memory_mb=256), run_id="t"
    )
    again = await runs.execute(row, row.answer.gold_patch, timeout_s=60.0, overlay=reference.files)
    assert again.verdict is Verdict.PASSED


async def test_methods_of_unittest_expected_failures_and_what_cannot_be_changed(
    home: Path, row: TaskRow
) -> None:
    path = "tests/test_more.py"
    names = ("ClampTest::test_high", "ClampTest::test_raises", "test_wrong", "test_nothing")
    tests = tuple(f"{path}::{name}" for name in names)
    command = row.answer.test_command.replace(TESTS, path)
    answer = replace(
        row.answer,
        test_files={path: REFERENCE_TESTS},
        fail_to_pass=tests[:1],
        pass_to_pass=(tests[1], tests[3]),
        test_command=command,
    )
    reference = await prover(home)(replace(row, answer=answer))

    assert reference.coverage == {
        tests[0]: MutantKind.VALUE, tests[1]: MutantKind.VALUE, tests[3]: MutantKind.ADDED,
    }  # fmt: skip


async def test_a_row_whose_gold_patch_does_not_pass_has_no_reference(home: Path, row: TaskRow) -> None:
    wrong = replace(row, answer=replace(row.answer, gold_patch=patched("value = 1\n")))
    with pytest.raises(DatasetError, match="does not pass with its gold patch"):
        await prover(home)(wrong)


async def test_tests_that_another_language_runs_have_no_mutants(home: Path, row: TaskRow) -> None:
    answer = replace(
        under(row, "exit code").answer,
        fail_to_pass=(),
        pass_to_pass=(),
        test_command="grep -q 'value > high' toy/numbers.py",
    )
    reference = await prover(home)(replace(row, answer=answer))
    assert reference.variants == ()
    assert "no test file in a known language" in reference.note


async def test_references_are_kept_for_unchanged_rows_when_a_dataset_is_replaced(
    home: Path, row: TaskRow
) -> None:
    reference = await prover(home)(row)
    save_dataset(home, "kept", [row], {})
    folder = dataset_path(home, "kept")
    await FileReferences(folder).save(row, reference)
    save_dataset(home, "kept", [row], {"imported": "again"})

    assert await FileReferences(folder).load(row) == reference
    changed = replace(row, answer=replace(row.answer, timeout_s=9.0))
    assert await FileReferences(folder).load(changed) is None
    (file,) = (folder / "references").iterdir()
    assert file.stat().st_mode & 0o077 == 0
    file.write_bytes(file.read_bytes()[:100])
    assert await FileReferences(folder).load(row) is None


async def test_tasks_of_one_source_share_their_proof(home: Path, row: TaskRow) -> None:
    mean, positives = row.answer.pass_to_pass
    rows = [
        with_content_id(replace(row, answer=replace(row.answer, pass_to_pass=passing)))
        for passing in ((mean,), (positives,))
    ]
    save_dataset(
        home, "shared", [replace(one, task=replace(one.task, instance_id=one.task.id)) for one in rows], {}
    )
    backend = CountingBackend(home)
    shared = Prover(backend=backend, config=SETTINGS, sandbox=SandboxConfig(memory_mb=256), run_id="t")
    store = FileReferences(dataset_path(home, "shared"))

    assert await make_references(rows, shared, store) == []
    proofs = backend.opened
    assert proofs in (5, 6), "one true run, and one for each of three variants and of one or two decoys"
    for one, other in zip(rows, reversed(rows), strict=True):
        reference = await store.load(one)
        assert reference is not None
        assert len(reference.variants) == 3
        fixed, others = set(one.answer.fail_to_pass), set(one.answer.pass_to_pass)
        beside = {test for decoy in reference.decoys for test in decoy.must_fail} - fixed
        for variant in reference.variants:
            wanted = fixed | (beside if variant.quiet and reference.decoys else others)
            assert set(variant.must_fail) == wanted
            assert not set(variant.must_fail) & set(other.answer.pass_to_pass)

    assert await make_references(rows, shared, store) == []
    assert backend.opened == proofs, "what is known is not proven again"


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
        assert len(reference.variants) == 3
        assert set(one.answer.fail_to_pass) <= set(reference.variants[0].must_fail)
