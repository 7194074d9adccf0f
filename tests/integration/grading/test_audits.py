"""Audits with mutated tests in real sandboxes: honest patches are confirmed, forgeries are caught."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from engine.grading.counterfactual.base import Mutant, MutantKind, Reference, Variant
from engine.sandbox.local.backend import LocalBackend
from engine.types import CounterfactualOutcome, FindingKind, Grade, TaskRow, TestOutcome, Verdict
from tests.builders.dataset_builders import NUMBERS, TEST_NUMBERS, MemoryStore, make_grader, patched
from tests.builders.sandbox_builders import CountingBackend
from tests.integration.adversary.frame import EVERY, IDS, in_call, under

FILE = "tests/test_numbers.py"
EDITS = {"test_clamp": ("== expected", "!= expected"), "TestMean.test_mean": ("== 3", "== 4")}
FIX = patched(NUMBERS + "\n# not as the gold patch has it\n")
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


def reference_of(row: TaskRow, rule: str, **fields: Any) -> Reference:
    """Return the reference that a proof of the toy task's tests would store."""
    names = [test for test in IDS if "positives" not in test]
    if rule == "signed":
        names = [test for test in (*row.answer.fail_to_pass, *row.answer.pass_to_pass) if test in names]
    elif rule == "map":
        names = [".".join(test.split("::")[1:]) for test in names]
    elif rule == "junit":
        names = [*row.answer.fail_to_pass]
    variant = Variant(mutants=tuple(map(mutant, EDITS)), must_fail=tuple(names))
    files = {FILE: TEST_NUMBERS.encode()}
    return Reference(content="c", files=files, variants=(variant,), **fields)


async def graded(
    backend: LocalBackend,
    row: TaskRow,
    patch: str,
    *,
    rule: str = "signed",
    mode: Mode = "always",
    reference: Reference | None = None,
) -> Grade:
    row = under(row, rule)
    store = MemoryStore((row, reference or reference_of(row, rule)))
    grader = make_grader(backend, counterfactual=mode, store=store)
    return await grader.grade(row, patch)


@pytest.mark.parametrize("rule", EVERY)
async def test_audit_confirms_a_fix_under_every_rule(home: Path, row: TaskRow, rule: str) -> None:
    backend = CountingBackend(home)
    grade = await graded(backend, row, FIX, rule=rule)
    assert (grade.verdict, grade.reward, grade.detail) == (Verdict.PASSED, 1.0, "")
    assert grade.counterfactual is CounterfactualOutcome.CONFIRMED
    per_run = 2 if rule == "parser" else 1  # a parser script runs in its own sandbox
    assert (grade.extra_runs, backend.opened) == (1, 2 * per_run)
    assert 0 < grade.extra_seconds < grade.seconds


@pytest.mark.parametrize("rule", ["signed", "map", "reward"])
async def test_audit_catches_a_forgery(home: Path, row: TaskRow, rule: str) -> None:
    """Cover rules that name tests, rules that parse a log, and rules with only a script's reward."""
    grade = await graded(LocalBackend(home), row, ANYTHING, rule=rule)
    assert (grade.verdict, grade.reward, grade.extra_runs) == (Verdict.TAMPERED, 0.0, 1)
    assert grade.counterfactual is CounterfactualOutcome.CAUGHT
    evidence = [finding for finding in grade.findings if finding.kind is FindingKind.COUNTERFACTUAL]
    assert "!= expected" in evidence[0].detail
    assert "!= expected" not in grade.detail


async def test_each_run_of_a_grading_is_retried_after_infrastructure_failures(
    home: Path, row: TaskRow
) -> None:
    backend = CountingBackend(home, failing=(1, 2, 4))
    grade = await graded(backend, row, FIX)
    assert (grade.verdict, grade.counterfactual) == (Verdict.PASSED, CounterfactualOutcome.CONFIRMED)
    assert backend.opened == 5


async def test_first_grading_proves_the_row_and_stores_its_reference(home: Path, row: TaskRow) -> None:
    backend, store = CountingBackend(home), MemoryStore()
    grade = await make_grader(backend, counterfactual="always", store=store).grade(row, FIX)
    assert grade.counterfactual is CounterfactualOutcome.CONFIRMED
    proof = 1 + len(store.kept[row.task.id].variants)
    assert backend.opened == proof + 2


@pytest.mark.parametrize(("rule", "mark"), [("log", "xfail"), ("exit code", "skip")])
async def test_skips_and_expected_failures_count_only_where_the_gold_patch_has_them(
    home: Path, row: TaskRow, rule: str, mark: str
) -> None:
    excuse = in_call(f"import pytest; pytest.{mark}('later')\n")
    clamps = {test: TestOutcome(mark if mark == "xfail" else "skipped") for test in IDS if "clamp" in test}
    reference = reference_of(row, rule, outcomes=clamps if mark == "skip" else {})
    grade = await graded(LocalBackend(home), row, excuse, rule=rule, mode="off", reference=reference)
    assert grade.verdict is (Verdict.PASSED if mark == "skip" else Verdict.FAILED)
    assert ("not under the gold patch" in grade.detail) is (mark == "xfail")
