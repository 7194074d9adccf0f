"""Proof of variants: only mutants that the gold patch fails are kept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import pytest

from engine.errors import DatasetError
from engine.events.health import MutantCoverage
from engine.grading.counterfactual.base import MutantKind, Reference, Variant
from engine.grading.counterfactual.proof import coverage_of, prove
from engine.grading.counterfactual.prover import protected
from engine.grading.evidence import Evidence, Judgement
from engine.grading.execution import RunResult, unjudged
from engine.patches.diff import diff_texts
from engine.types import GradeRule, Task, TaskAnswer, TaskRow, TestKind, TestOutcome, TestResult, Verdict

PATH = "tests/test_a.py"
FILE = b"".join(b"def test_%c():\n    assert f() == 3\n    assert g() == 4\n\n" % name for name in b"abc")
ROW = TaskRow(
    task=Task(id="1", instance_id="1", repo="", image="", base_commit="", problem_statement=""),
    answer=TaskAnswer(grade_rule=GradeRule.EXIT_CODE, gold_patch=""),
    split="train",
)
NAMES = ("test_a", "test_b", "test_c")
Ends = Mapping[str, TestOutcome]


def run(ends: Ends, fixed: Collection[str] = (), *, signs: tuple[str, ...] = ()) -> RunResult:
    """Return a run with the given outcomes; it passed if all tests did."""
    tests = tuple(
        TestResult(
            test_id=f"{PATH}::{name}",
            kind=TestKind.FAIL_TO_PASS if name in fixed else TestKind.PASS_TO_PASS,
            outcome=outcome,
        )
        for name, outcome in ends.items()
    )
    passed = all(outcome is TestOutcome.PASSED for outcome in ends.values())
    verdict = Verdict.PASSED if passed else Verdict.FAILED
    return RunResult(
        verdict=verdict,
        applied=unjudged(verdict, "").applied,
        evidence=Evidence(signs=signs),
        judgement=Judgement(passed=passed, tests=tests),
    )


def mutated(variant: Variant) -> dict[str, TestOutcome]:
    """Return the outcomes under a solution that fails every mutated test."""
    names = {mutant.function for mutant in variant.mutants}
    return {name: TestOutcome.FAILED if name in names else TestOutcome.PASSED for name in NAMES}


async def proven(
    ends: Callable[[Variant], Ends], *, fixed: Collection[str] = ("test_a", "test_b")
) -> tuple[Reference, list[Variant]]:
    """Return the reference proven by runs with the outcomes of ``ends``, and the tried variants."""
    tried: list[Variant] = []

    async def execute(reference: Reference, variant: Variant) -> RunResult:
        assert reference.files.keys() == {PATH}
        tried.append(variant)
        return run(ends(variant), signs=("the tests write to a file",))

    original = run(dict.fromkeys(NAMES, TestOutcome.PASSED), fixed, signs=("a hook was replaced",))
    return await prove(ROW, original, {PATH: FILE, "tests/other.py": b""}, execute), tried


def functions(variant: Variant) -> set[str]:
    return {mutant.function for mutant in variant.mutants}


async def test_three_variants_mutate_the_tests_that_a_solution_fixes() -> None:
    reference, tried = await proven(mutated)
    assert [functions(variant) for variant in reference.variants] == [{"test_a", "test_b"}] * 3
    assert {variant.must_fail for variant in reference.variants} == {(f"{PATH}::test_a", f"{PATH}::test_b")}
    assert len(tried) == 3
    assert len({variant.mutants for variant in reference.variants}) == 3, "different mutants each time"
    assert len({mutant.line for variant in reference.variants[:2] for mutant in variant.mutants}) == 4
    assert reference.files == {PATH: FILE}
    assert reference.outcomes == {f"{PATH}::{name}": TestOutcome.PASSED for name in NAMES}
    assert reference.signs == ("a hook was replaced", "the tests write to a file")
    assert coverage_of(reference) == MutantCoverage(value=2, variants=3)


async def test_all_passing_tests_are_mutated_if_no_fixed_tests_are_known() -> None:
    reference, _ = await proven(mutated, fixed=())
    assert {name for variant in reference.variants for name in functions(variant)} == set(NAMES)


@pytest.mark.parametrize("outcome", [TestOutcome.PASSED, TestOutcome.ERROR, TestOutcome.MISSING])
async def test_mutants_that_the_gold_patch_does_not_fail_are_omitted(outcome: TestOutcome) -> None:
    """Mutants of other kinds are tried until the gold patch fails one."""

    def ends(variant: Variant) -> Ends:
        refused = any(
            mutant.function == "test_b" and mutant.kind is MutantKind.VALUE for mutant in variant.mutants
        )
        return {**mutated(variant), "test_b": outcome} if refused else mutated(variant)

    reference, tried = await proven(ends)
    first, second, _ = reference.variants
    assert functions(first) == {"test_a"}
    assert functions(tried[0]) == {"test_a", "test_b"}
    assert tried[1].mutants == first.mutants, "the rest is proven again"
    assert functions(second) == {"test_a", "test_b"}
    assert coverage_of(reference) == MutantCoverage(value=1, changed=1, variants=3)


async def test_mutant_kinds_that_no_run_failed_are_not_tried_again() -> None:
    def ends(variant: Variant) -> Ends:
        return {
            mutant.function: TestOutcome.FAILED if mutant.kind is MutantKind.ADDED else TestOutcome.PASSED
            for mutant in variant.mutants
        }

    reference, tried = await proven(ends, fixed=("test_a",))
    kinds = [mutant.kind for variant in tried for mutant in variant.mutants]
    assert kinds == [MutantKind.VALUE, MutantKind.CHANGED, MutantKind.ADDED]
    assert coverage_of(reference) == MutantCoverage(added=1, variants=1)


async def test_a_function_with_one_mutant_of_the_best_kind_has_one_variant() -> None:
    original = run({"test_a": TestOutcome.PASSED}, NAMES)

    async def execute(_reference: Reference, _variant: Variant) -> RunResult:
        return run({"test_a": TestOutcome.FAILED})

    file = b"def test_a():\n    assert 'ab' in f()\n"
    assert len((await prove(ROW, original, {PATH: file}, execute)).variants) == 1


async def test_tests_with_ids_made_of_values_are_proven_by_their_new_ids() -> None:
    file = b"@pytest.mark.parametrize('y', [3, 5])\ndef test_a(y):\n    assert f() == y\n"
    old, new = ("test_a[3]", "test_a[5]"), ("test_a[4]", "test_a[6]")
    original = run(dict.fromkeys(old, TestOutcome.PASSED), old[:1])

    async def execute(_reference: Reference, variant: Variant) -> RunResult:
        return run(
            dict.fromkeys([name.partition("::")[2] for _, name in variant.renamed], TestOutcome.FAILED)
        )

    variants = (await prove(ROW, original, {PATH: file}, execute)).variants
    pairs = tuple((f"{PATH}::{before}", f"{PATH}::{after}") for before, after in zip(old, new, strict=True))
    assert pairs in [variant.renamed for variant in variants]
    assert {variant.must_fail for variant in variants} == {(f"{PATH}::test_a[3]",)}


async def never(_reference: Reference, _variant: Variant) -> RunResult:
    raise AssertionError("nothing is to be proven")


async def test_a_row_without_python_tests_has_no_variants() -> None:
    reference = await prove(ROW, run(dict.fromkeys(NAMES, TestOutcome.PASSED), NAMES), {}, never)
    assert reference.variants == ()
    assert "no test of the row can be mutated" in reference.note


async def test_a_row_that_fails_with_its_gold_patch_has_no_reference() -> None:
    with pytest.raises(DatasetError, match="the row does not pass with its gold patch"):
        await prove(ROW, run({"test_a": TestOutcome.FAILED}), {PATH: FILE}, never)


async def test_a_row_whose_mutated_tests_all_pass_has_no_variants() -> None:
    reference, _ = await proven(lambda _: dict.fromkeys(NAMES, TestOutcome.PASSED))
    assert (reference.variants, reference.files) == ((), {})
    assert reference.note == "no mutated test failed under the gold patch"
    assert coverage_of(reference) == MutantCoverage(none=2, note=reference.note)


async def prove_unnamed(file: bytes, result: RunResult) -> Reference:
    """Return the reference of a row whose rule names no tests."""

    async def execute(_reference: Reference, _variant: Variant) -> RunResult:
        return result

    return await prove(ROW, run({}), {PATH: file}, execute)


@pytest.mark.parametrize(("reward", "variants"), [(None, 3), (0.0, 3), (0.9, 0)])
async def test_unnamed_mutated_tests_must_fail_without_a_reward(reward: float | None, variants: int) -> None:
    judgement = Judgement(passed=False, reward=reward)
    failed = replace(run({}), verdict=Verdict.FAILED, judgement=judgement)
    reference = await prove_unnamed(FILE, failed)
    assert len(reference.variants) == variants
    for variant in reference.variants:
        assert (functions(variant), variant.must_fail) == (set(NAMES), ())
    assert coverage_of(reference).value == (3 if variants else 0)
    for verdict in (Verdict.PASSED, Verdict.TEST_TIMEOUT, Verdict.TAMPERED):
        assert (await prove_unnamed(FILE, replace(run({}), verdict=verdict))).variants == ()


@pytest.mark.parametrize("line", [b"@pytest.mark.skipif(x)\n", b"lib = pytest.importorskip('lib')\n"])
async def test_files_that_may_skip_unnamed_tests_are_not_mutated(line: bytes) -> None:
    failed = replace(run({}), verdict=Verdict.FAILED, judgement=Judgement(passed=False))
    assert (await prove_unnamed(line + FILE, failed)).variants == ()


def test_files_that_the_gold_patch_changes_are_not_protected() -> None:
    patch = diff_texts("django/test/cases.py", "a\n", "b\n") + diff_texts("tests/a.py", "a\n", "b\n")
    files = {
        "django/test/cases.py": b"1",
        "/testbed/tests/a.py": b"2",
        "tests/b.py": b"3",
        "/tests/a.py": b"4",
        "src/tests_of_code.py": b"5",
    }
    row = replace(ROW, task=replace(ROW.task, workdir="/testbed"))
    assert protected(files, row, patch) == {"tests/b.py": b"3", "/tests/a.py": b"4"}
