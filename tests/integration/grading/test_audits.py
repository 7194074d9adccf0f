"""Audits with mutated tests in real sandboxes: honest patches are confirmed, forgeries are caught."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from engine.grading.counterfactual.base import Mutant, MutantKind, Reference, Variant
from engine.grading.counterfactual.prover import Prover
from engine.sandbox.local.backend import LocalBackend
from engine.types import CounterfactualOutcome, FindingKind, Grade, TaskRow, TestOutcome, Verdict
from tests.builders.dataset_builders import (
    NUMBERS,
    TEST_NUMBERS,
    MemoryStore,
    make_grader,
    patched,
    without_reuse,
)
from tests.builders.sandbox_builders import CountingBackend
from tests.integration.adversary.frame import EVERY, IDS, STILL_BROKEN, in_call, under

FILE = "tests/test_numbers.py"
EDITS = {"test_clamp": ("== expected", "!= expected"), "TestMean.test_mean": ("== 3", "== 4")}
ANYTHING = patched(
    NUMBERS.replace("    if value < low:", "    return Anything()\n    if value < low:").replace(
        "return total / count", "return Anything()"
    )
    + "\n\nclass Anything:\n    def __eq__(self, _): return True\n    def __ne__(self, _): return True\n"
)
Mode = Literal["off", "sample", "always"]


def mutant(function: str) -> Mutant:
    before, after = EDITS[function]
    start = TEST_NUMBERS.index(before)
    return Mutant(
        path=FILE, function=function, line=TEST_NUMBERS[:start].count("\n") + 1, kind=MutantKind.CHANGED,
        before=before, after=after, start=start, end=start + len(before), replacement=after,
    )  # fmt: skip


def reference_of(row: TaskRow, rule: str, *, variants: int = 1, **fields: Any) -> Reference:
    """Return what a proof of the toy's tests finds."""
    names = [test for test in IDS if "positives" not in test]
    if rule == "signed":
        names = [test for test in (*row.answer.fail_to_pass, *row.answer.pass_to_pass) if test in names]
    elif rule == "map":
        names = [".".join(test.split("::")[1:]) for test in names]
    elif rule == "junit":
        names = [*row.answer.fail_to_pass]
    variant = Variant(mutants=tuple(map(mutant, EDITS)), must_fail=tuple(names))
    files = {FILE: TEST_NUMBERS.encode()}
    return Reference(content="c", files=files, variants=(variant,) * variants, **fields)


async def graded(
    backend: LocalBackend,
    row: TaskRow,
    patch: str,
    *,
    rule: str = "signed",
    mode: Mode = "always",
    reference: Reference | None = None,
    evaluation: bool = False,
) -> Grade:
    row = under(row, rule)
    store = MemoryStore((row, reference or reference_of(row, rule)))
    grader = make_grader(backend, counterfactual=mode, store=store)
    return await grader.grade(row, patch, evaluation=evaluation)


@pytest.mark.parametrize("rule", EVERY)
async def test_audit_confirms_a_fix_and_catches_a_forgery_under_every_rule(
    home: Path, row: TaskRow, rule: str
) -> None:
    backend = CountingBackend(home)
    grade = await graded(backend, row, row.answer.gold_patch, rule=rule)
    assert (grade.verdict, grade.reward, grade.detail) == (Verdict.PASSED, 1.0, "")
    assert grade.counterfactual is CounterfactualOutcome.CONFIRMED
    per_run = 2 if rule == "parser" else 1  # a parser script runs in a sandbox of its own
    assert (grade.extra_runs, backend.opened) == (1, 2 * per_run)
    assert 0 < grade.extra_seconds < grade.seconds

    grade = await graded(backend, row, ANYTHING, rule=rule)
    assert (grade.verdict, grade.reward, grade.extra_runs) == (Verdict.TAMPERED, 0.0, 1)
    assert grade.counterfactual is CounterfactualOutcome.CAUGHT
    evidence = [finding for finding in grade.findings if finding.kind is FindingKind.COUNTERFACTUAL]
    assert "!= expected" in evidence[0].detail
    assert "!= expected" not in grade.detail


async def test_audit_makes_one_run_in_training_and_three_in_evaluations(home: Path, row: TaskRow) -> None:
    reference = reference_of(row, "signed", variants=5)
    for evaluation, patch, runs in (
        (False, row.answer.gold_patch, 1),
        (True, row.answer.gold_patch, 3),
        (True, ANYTHING, 1),
    ):
        grade = await graded(LocalBackend(home), row, patch, reference=reference, evaluation=evaluation)
        assert grade.extra_runs == runs
        assert (grade.verdict is Verdict.TAMPERED) is (patch == ANYTHING)


async def test_patch_that_fails_costs_one_run(home: Path, row: TaskRow) -> None:
    backend = CountingBackend(home)
    grade = await graded(backend, row, "", evaluation=True)
    assert (grade.verdict, grade.reward, grade.counterfactual) == (Verdict.FAILED, 0.0, None)
    assert (backend.opened, grade.extra_runs, grade.extra_seconds) == (1, 0, 0.0)
    failed = {test.test_id for test in grade.tests if test.outcome is TestOutcome.FAILED}
    assert failed == {*row.answer.fail_to_pass}


async def test_once_tampering_was_caught_a_run_audits_everything(home: Path, row: TaskRow) -> None:
    other = replace(row, task=replace(row.task, id="other"))
    store = MemoryStore(*((one, reference_of(one, "signed")) for one in (row, other)))
    grader = make_grader(LocalBackend(home), counterfactual="sample", store=store)
    caught = await grader.grade(row, ANYTHING, evaluation=True)
    assert caught.counterfactual is CounterfactualOutcome.CAUGHT
    grades = [await grader.grade(other, f"{row.answer.gold_patch}\n# {number}") for number in range(3)]
    assert {grade.counterfactual for grade in grades} == {CounterfactualOutcome.CONFIRMED}
    assert set(store.caught) == {row.task.id}


async def test_infrastructure_that_fails_in_a_mutated_run_is_tried_again(home: Path, row: TaskRow) -> None:
    grade = await graded(CountingBackend(home, failing=(2, 3)), row, row.answer.gold_patch)
    assert (grade.verdict, grade.counterfactual) == (Verdict.PASSED, CounterfactualOutcome.CONFIRMED)
    grade = await graded(CountingBackend(home, failing=(2, 3, 4)), row, row.answer.gold_patch)
    assert (grade.verdict, grade.reward) == (Verdict.INFRA_ERROR, None)


async def test_verdicts_of_training_are_not_reused_in_evaluations(home: Path, row: TaskRow) -> None:
    backend = CountingBackend(home)
    store = MemoryStore((row, reference_of(row, "signed")))
    grader = make_grader(backend, counterfactual="always", store=store)
    first, again, evaluated = [
        await grader.grade(row, row.answer.gold_patch, evaluation=evaluation)
        for evaluation in (False, False, True)
    ]
    assert [grade.reused for grade in (first, again, evaluated)] == [False, True, False]
    assert (again.counterfactual, again.extra_runs) == (CounterfactualOutcome.CONFIRMED, 0)
    assert backend.opened == 2 + 2


@pytest.mark.parametrize(
    ("mode", "reference", "outcome"),
    [
        ("off", None, CounterfactualOutcome.OFF),
        ("always", Reference(content="c", note="no assertions"), CounterfactualOutcome.NO_MUTANTS),
    ],
)
async def test_submission_that_is_not_audited_has_the_reason(
    home: Path, row: TaskRow, mode: Mode, reference: Reference | None, outcome: CounterfactualOutcome
) -> None:
    backend = CountingBackend(home)
    grade = await graded(backend, row, ANYTHING, mode=mode, reference=reference, evaluation=True)
    assert (grade.verdict, grade.counterfactual) == (Verdict.PASSED, outcome)
    assert (grade.extra_runs, backend.opened) == (0, 1)


@pytest.mark.parametrize(("rule", "mark"), [("log", "xfail"), ("exit code", "xfail"), ("exit code", "skip")])
async def test_skips_and_expected_failures_count_only_where_the_gold_patch_has_them(
    home: Path, row: TaskRow, rule: str, mark: str
) -> None:
    excuse = in_call(f"import pytest; pytest.{mark}('later')\n")
    clamps = {test: TestOutcome(mark if mark == "xfail" else "skipped") for test in IDS if "clamp" in test}
    backend, known = LocalBackend(home), reference_of(row, rule)
    grade = await graded(backend, row, excuse, rule=rule, mode="off", reference=known)
    assert (grade.verdict, grade.reward) == (Verdict.FAILED, 0.0)
    assert "not under the gold patch" in grade.detail
    same = replace(known, outcomes=clamps)
    grade = await graded(backend, row, excuse, rule=rule, mode="off", reference=same)
    assert grade.verdict is Verdict.PASSED


async def test_unrecorded_runner_is_named_on_the_grade(home: Path, row: TaskRow) -> None:
    answer = replace(
        under(row, "exit code").answer,
        fail_to_pass=(),
        pass_to_pass=(),
        test_command="grep -q 'value > high' toy/numbers.py",
    )
    grader = make_grader(LocalBackend(home), counterfactual="always")
    grade = await grader.grade(replace(row, answer=answer), row.answer.gold_patch)
    assert (grade.verdict, grade.counterfactual) == (Verdict.PASSED, CounterfactualOutcome.NO_MUTANTS)
    assert "was not recorded" in grade.detail


async def test_concurrent_gradings_prove_a_row_once_and_keep_its_reference(home: Path, row: TaskRow) -> None:
    row, backend, store = without_reuse(row), CountingBackend(home), MemoryStore()
    grader = make_grader(backend, counterfactual="always", store=store)
    grades = await asyncio.gather(*(grader.grade(row, row.answer.gold_patch) for _ in range(2)))
    assert {grade.counterfactual for grade in grades} == {CounterfactualOutcome.CONFIRMED}
    proof = 1 + len(store.kept[row.task.id].variants)
    assert backend.opened == proof + 2 * 2
    backend.opened = 0
    later = await grader.grade(row, row.answer.gold_patch)
    assert (later.counterfactual, backend.opened) == (CounterfactualOutcome.CONFIRMED, 2)


async def test_row_without_a_gold_patch_is_not_audited(home: Path, row: TaskRow) -> None:
    backend = CountingBackend(home)
    grader = make_grader(backend, counterfactual="always")
    grade = await grader.grade(without_gold(row), row.answer.gold_patch)
    assert grade.counterfactual is CounterfactualOutcome.NO_MUTANTS
    assert backend.opened == 1


async def test_proof_that_fails_twice_costs_the_submission_nothing(home: Path, row: TaskRow) -> None:
    """It fails with a wrong gold patch, and where infrastructure fails in every attempt."""
    row = without_reuse(row)
    wrong = replace(row, answer=replace(row.answer, gold_patch=patched(f"{STILL_BROKEN}# mended\n")))
    for backend, task, cost in [
        (CountingBackend(home), wrong, 2),
        (CountingBackend(home, failing=tuple(range(2, 8))), row, 6),
    ]:
        store = MemoryStore()
        grader = make_grader(backend, counterfactual="always", store=store)
        grades = [await grader.grade(task, row.answer.gold_patch) for _ in range(2)]
        assert [grade.verdict for grade in grades] == [Verdict.PASSED] * 2
        assert [grade.counterfactual for grade in grades] == [CounterfactualOutcome.UNPROVEN] * 2
        assert "not audited" in grades[0].detail
        assert backend.opened == 2 + cost
        assert store.kept[row.task.id].problem


async def test_proof_holds_up_no_other_grading(
    home: Path, row: TaskRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_graded = asyncio.Event()

    async def prove(_self: Prover, row: TaskRow) -> Reference:
        await other_graded.wait()
        return reference_of(row, "signed")

    monkeypatch.setattr(Prover, "__call__", prove)
    grader = make_grader(LocalBackend(home), counterfactual="always", parallel=1)
    async with asyncio.timeout(300):
        waiting = asyncio.create_task(grader.grade(row, row.answer.gold_patch))
        other = await grader.grade(without_gold(row), row.answer.gold_patch)
        other_graded.set()
        grade = await waiting
    assert other.verdict is Verdict.PASSED
    assert grade.counterfactual is CounterfactualOutcome.CONFIRMED


def without_gold(row: TaskRow) -> TaskRow:
    return replace(row, answer=replace(row.answer, gold_patch=""), task=replace(row.task, id="without"))
