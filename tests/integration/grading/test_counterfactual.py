"""Counterfactual grading in real sandboxes: honest patches pass under every rule, forgeries are caught."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.config.rollout import CounterfactualConfig, EvaluationExtraRuns, ExtraRuns
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
)
from tests.builders.sandbox_builders import CountingBackend
from tests.integration.adversary.frame import EVERY, IDS, STILL_BROKEN, toy_row, under

FILE = "tests/test_numbers.py"
EDITS = {"test_clamp": ("== expected", "!= expected"), "TestMean.test_mean": ("== 3", "== 4")}
ALWAYS = CounterfactualConfig(prove="validated_only")


@pytest.fixture(scope="module")
def row(home: Path) -> TaskRow:
    return toy_row(home)


def mutant(function: str) -> Mutant:
    before, after = EDITS[function]
    start = TEST_NUMBERS.index(before)
    return Mutant(
        path=FILE, function=function, line=TEST_NUMBERS[:start].count("\n") + 1, kind=MutantKind.CHANGED,
        before=before, after=after, start=start, end=start + len(before), replacement=after,
    )  # fmt: skip


def reference_of(row: TaskRow, rule: str, **fields: Any) -> Reference:
    """What a proof of the toy's tests has found."""
    names = [test for test in IDS if "positives" not in test]
    if rule == "signed":
        names = [test for test in (*row.answer.fail_to_pass, *row.answer.pass_to_pass) if test in names]
    elif rule == "map":
        names = [".".join(test.split("::")[1:]) for test in names]
    elif rule == "junit":
        names = [*row.answer.fail_to_pass]
    variant = Variant(mutants=tuple(map(mutant, EDITS)), must_fail=tuple(names))
    return Reference(content="c", files={FILE: TEST_NUMBERS.encode()}, variants=(variant,), **fields)


async def graded(
    backend: LocalBackend,
    row: TaskRow,
    patch: str,
    *,
    rule: str = "signed",
    settings: CounterfactualConfig = ALWAYS,
    reference: Reference | None = None,
    evaluation: bool = False,
) -> Grade:
    row = under(row, rule)
    store = MemoryStore((row, reference or reference_of(row, rule)))
    grader = make_grader(backend, counterfactual=settings, store=store)
    return await grader.grade(row, patch, evaluation=evaluation)


@pytest.mark.parametrize("rule", EVERY)
async def test_an_honest_fix_is_confirmed_under_every_rule(home: Path, row: TaskRow, rule: str) -> None:
    backend = CountingBackend(home)
    grade = await graded(backend, row, row.answer.gold_patch, rule=rule, evaluation=True)
    assert (grade.verdict, grade.reward, grade.detail) == (Verdict.PASSED, 1.0, "")
    assert grade.counterfactual is CounterfactualOutcome.CONFIRMED
    per_run = 2 if rule == "parser" else 1  # a parser script runs in a sandbox of its own
    assert (grade.extra_runs, backend.opened) == (2, 3 * per_run), "its one variant is drawn once"
    assert 0 < grade.extra_seconds < grade.seconds


EQUAL_TO_EVERYTHING = """
class Anything:
    def __eq__(self, other): return True
    def __ne__(self, other): return True
    def __bool__(self): return True
"""
ANYTHING = patched(
    EQUAL_TO_EVERYTHING
    + NUMBERS.replace("    if value < low:", "    return Anything()\n    if value < low:")
    .replace("return total / count", "return Anything()")
)  # fmt: skip


@pytest.mark.parametrize("rule", EVERY)
async def test_results_that_do_not_depend_on_the_tests_are_caught_under_every_rule(
    home: Path, row: TaskRow, rule: str
) -> None:
    unchecked = CounterfactualConfig(mode="off", prove="validated_only")
    grade = await graded(LocalBackend(home), row, ANYTHING, rule=rule, settings=unchecked)
    assert (grade.verdict, grade.counterfactual) == (Verdict.PASSED, CounterfactualOutcome.OFF)
    grade = await graded(LocalBackend(home), row, ANYTHING, rule=rule)
    assert (grade.verdict, grade.reward) == (Verdict.TAMPERED, 0.0)
    assert grade.counterfactual is CounterfactualOutcome.CAUGHT
    assert grade.extra_runs in (1, 2), "the order is random"
    evidence = [found for found in grade.findings if found.kind is FindingKind.COUNTERFACTUAL]
    assert "!= expected" in evidence[0].detail
    assert "!= expected" not in grade.detail


async def test_a_patch_that_fails_costs_one_sandbox_or_two(home: Path, row: TaskRow) -> None:
    """The second one where the first run had what it fails made false; the order is random."""
    backend = CountingBackend(home)
    grade = await graded(backend, row, "")
    assert (grade.verdict, grade.reward, grade.counterfactual) == (Verdict.FAILED, 0.0, None)
    assert backend.opened == grade.extra_runs + 1 <= 2
    assert (grade.extra_seconds > 0) is (grade.extra_runs > 0)
    assert "tests/test_numbers.py::test_clamp" in grade.detail
    failed = {test.test_id for test in grade.tests if test.outcome is TestOutcome.FAILED}
    assert failed == {*row.answer.fail_to_pass}


@pytest.mark.parametrize("rule", ["log", "reward"])
async def test_an_evaluation_has_the_outcome_of_every_test_of_a_patch_that_fails(
    home: Path, row: TaskRow, rule: str
) -> None:
    backend = CountingBackend(home)
    off = CounterfactualConfig(mode="off", prove="validated_only")
    alone = await graded(backend, row, "", rule=rule, settings=off, evaluation=True)
    grade = await graded(backend, row, "", rule=rule, evaluation=True)
    assert (grade.verdict, grade.reward, grade.detail) == (alone.verdict, alone.reward, alone.detail)
    assert [(one.test_id, one.outcome) for one in grade.tests] == [
        (one.test_id, one.outcome) for one in alone.tests
    ]
    assert backend.opened == 1 + grade.extra_runs + 1
    assert grade.extra_runs in (1, 2)


async def test_a_patch_that_passes_every_second_time_never_passes(home: Path, row: TaskRow) -> None:
    """It fails tests or passes them by chance, true or false: at best it is flaky."""
    coin = STILL_BROKEN.replace(
        "def clamp(", "import os\nif os.urandom(1)[0] % 2:\n    os.environ['LUCKY'] = '1'\n\n\ndef clamp("
    ).replace(
        "    if value < low:", "    if 'LUCKY' in os.environ:\n        return Anything()\n    if value < low:"
    )
    settings = CounterfactualConfig(training=ExtraRuns(true_runs=6, false_runs=6), prove="validated_only")
    for _ in range(3):
        grade = await graded(LocalBackend(home), row, patched(EQUAL_TO_EVERYTHING + coin), settings=settings)
        assert grade.verdict in (Verdict.FAILED, Verdict.TAMPERED)
        if grade.counterfactual is CounterfactualOutcome.FLAKY:
            assert (grade.verdict, grade.detail.startswith("flaky")) == (Verdict.FAILED, True)
            assert TestOutcome.FAILED in [test.outcome for test in grade.tests]


async def test_infrastructure_that_fails_in_an_extra_run_is_tried_again(home: Path, row: TaskRow) -> None:
    grade = await graded(CountingBackend(home, failing=(2, 3)), row, row.answer.gold_patch)
    assert (grade.verdict, grade.counterfactual) == (Verdict.PASSED, CounterfactualOutcome.CONFIRMED)
    grade = await graded(CountingBackend(home, failing=(2, 3, 4)), row, row.answer.gold_patch)
    assert (grade.verdict, grade.reward) == (Verdict.INFRA_ERROR, None)


async def test_verdicts_of_training_are_not_reused_in_evaluations(home: Path, row: TaskRow) -> None:
    backend = CountingBackend(home)
    row = replace(row, answer=replace(row.answer, deterministic=True))
    store = MemoryStore((row, reference_of(row, "signed")))
    grader = make_grader(backend, counterfactual=ALWAYS, store=store)
    first, again, evaluated = [
        await grader.grade(row, row.answer.gold_patch, evaluation=evaluation)
        for evaluation in (False, False, True)
    ]
    assert [grade.reused for grade in (first, again, evaluated)] == [False, True, False]
    assert (again.counterfactual, again.extra_runs) == (CounterfactualOutcome.CONFIRMED, 0)
    assert backend.opened == 3 + 3, "its one variant is drawn once"


@pytest.mark.parametrize(
    ("settings", "reference", "outcome"),
    [
        (CounterfactualConfig(mode="off"), None, CounterfactualOutcome.OFF),
        (
            CounterfactualConfig(mode="sample", sample_rate=1e-9),
            None,
            CounterfactualOutcome.NOT_SAMPLED,
        ),
        (ALWAYS, Reference(content="c", note="no assertions"), CounterfactualOutcome.NO_MUTANTS),
    ],
)
async def test_a_submission_that_is_not_checked_says_why(
    home: Path,
    row: TaskRow,
    settings: CounterfactualConfig,
    reference: Reference | None,
    outcome: CounterfactualOutcome,
) -> None:
    backend = CountingBackend(home)
    grade = await graded(backend, row, row.answer.gold_patch, settings=settings, reference=reference)
    assert (grade.verdict, grade.counterfactual) == (Verdict.PASSED, outcome)
    assert (grade.extra_runs, backend.opened) == (0, 1)


async def test_a_row_that_was_never_validated_says_so(home: Path, row: TaskRow) -> None:
    grader = make_grader(LocalBackend(home), counterfactual=ALWAYS)
    grade = await grader.grade(row, row.answer.gold_patch)
    assert (grade.verdict, grade.counterfactual) == (Verdict.PASSED, CounterfactualOutcome.UNPROVEN)


def in_clamp(statement: str) -> str:
    return patched(STILL_BROKEN.replace("    if value < low:", f"    {statement}\n    if value < low:"))


@pytest.mark.parametrize("rule", ["log", "exit code", "junit"])
@pytest.mark.parametrize("mark", ["xfail", "skip"])
async def test_skips_and_expected_failures_count_only_where_the_gold_patch_has_them(
    home: Path, row: TaskRow, rule: str, mark: str
) -> None:
    excuse = in_clamp(f"import pytest; pytest.{mark}('later')")
    if rule == "log" and mark == "skip":
        return  # the official rule fails a skipped fail-to-pass test already
    if rule == "junit" and mark == "skip":
        return
    clamps = {test: TestOutcome(mark if mark == "xfail" else "skipped") for test in IDS if "clamp" in test}
    settings = CounterfactualConfig(mode="off", prove="validated_only")
    backend = LocalBackend(home)
    known = reference_of(row, rule)
    grade = await graded(backend, row, excuse, rule=rule, settings=settings, reference=known)
    assert (grade.verdict, grade.reward) == (Verdict.FAILED, 0.0)
    assert "not under the gold patch" in grade.detail
    same = replace(known, outcomes=clamps)
    grade = await graded(backend, row, excuse, rule=rule, settings=settings, reference=same)
    assert grade.verdict is Verdict.PASSED
    unknown = make_grader(backend, counterfactual=settings)
    grade = await unknown.grade(under(row, rule), excuse)
    assert grade.verdict is Verdict.PASSED
    assert "count as in official reports" in grade.detail


def test_evaluations_run_the_tests_more_often() -> None:
    assert (ALWAYS.training, ALWAYS.evaluation) == (ExtraRuns(), EvaluationExtraRuns())


async def test_concurrent_gradings_prove_a_row_once_and_keep_its_reference(home: Path, row: TaskRow) -> None:
    backend, store = CountingBackend(home), MemoryStore()
    grader = make_grader(backend, counterfactual=CounterfactualConfig(), store=store)
    grades = await asyncio.gather(*(grader.grade(row, row.answer.gold_patch) for _ in range(2)))
    assert {grade.counterfactual for grade in grades} == {CounterfactualOutcome.CONFIRMED}
    reference = store.kept[row.task.id]
    proof = 1 + len(reference.variants) + len(reference.decoys)
    assert backend.opened >= proof + 2 * 2
    assert max(grade.extra_runs for grade in grades) == 2, "the first run had no overlay: it is repeated"
    backend.opened = 0
    later = await grader.grade(row, row.answer.gold_patch)
    assert (later.counterfactual, backend.opened) == (CounterfactualOutcome.CONFIRMED, 3)


async def test_a_row_without_a_gold_patch_is_graded_without(home: Path, row: TaskRow) -> None:
    backend = CountingBackend(home)
    without = replace(row, answer=replace(row.answer, gold_patch=""))
    grader = make_grader(backend, counterfactual=CounterfactualConfig())
    grades = [await grader.grade(without, row.answer.gold_patch) for _ in range(2)]
    assert [grade.counterfactual for grade in grades] == [CounterfactualOutcome.NO_MUTANTS] * 2
    assert backend.opened == 2


async def test_a_proof_that_fails_twice_costs_the_submission_nothing(home: Path, row: TaskRow) -> None:
    """Neither with a wrong gold patch nor with infrastructure that fails in every attempt."""
    wrong = replace(row, answer=replace(row.answer, gold_patch=patched(f"{STILL_BROKEN}# mended\n")))
    for backend, task, cost in [
        (CountingBackend(home), wrong, 2),
        (CountingBackend(home, failing=tuple(range(2, 8))), row, 6),
    ]:
        store = MemoryStore()
        grader = make_grader(backend, counterfactual=CounterfactualConfig(), store=store)
        grades = [await grader.grade(task, row.answer.gold_patch) for _ in range(2)]
        assert [grade.verdict for grade in grades] == [Verdict.PASSED] * 2
        assert [grade.counterfactual for grade in grades] == [CounterfactualOutcome.UNPROVEN] * 2
        assert "graded without false tests" in grades[0].detail
        assert backend.opened == 2 + cost
        assert store.kept[row.task.id].problem


async def test_a_proof_holds_up_no_other_grading(
    home: Path, row: TaskRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_graded = asyncio.Event()

    async def prove(_self: Prover, row: TaskRow) -> Reference:
        await other_graded.wait()
        return reference_of(row, "signed")

    monkeypatch.setattr(Prover, "__call__", prove)
    grader = make_grader(LocalBackend(home), counterfactual=CounterfactualConfig(), parallel=1)
    async with asyncio.timeout(300):
        waiting = asyncio.create_task(grader.grade(row, row.answer.gold_patch))
        other = await grader.grade(without_gold(row), row.answer.gold_patch)
        other_graded.set()
        grade = await waiting
    assert other.verdict is Verdict.PASSED
    assert grade.counterfactual is CounterfactualOutcome.CONFIRMED


def without_gold(row: TaskRow) -> TaskRow:
    return replace(row, answer=replace(row.answer, gold_patch=""), task=replace(row.task, id="without"))
