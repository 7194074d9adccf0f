"""Proof of variants and decoys: only what fails for every solution is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.grading.counterfactual import proof
from engine.grading.counterfactual.base import Reference, Variant
from engine.grading.counterfactual.proof import Unfixed, prove
from engine.grading.counterfactual.selection import false_functions
from engine.grading.evidence import Evidence, Judgement
from engine.grading.execution import RunResult, unjudged
from engine.types import (
    GradeRule,
    Task,
    TaskAnswer,
    TaskRow,
    TestKind,
    TestOutcome,
    TestResult,
    Verdict,
)

TEST = b"from lib import f\ndef test_a():\n    assert f() == 3\n"
ROW = TaskRow(
    task=Task(id="1", instance_id="1", repo="", image="", base_commit="", problem_statement=""),
    answer=TaskAnswer(grade_rule=GradeRule.EXIT_CODE, gold_patch=""),
    split="train",
)


def run(verdict: Verdict, reward: float | None = None) -> RunResult:
    judgement = Judgement(passed=verdict is Verdict.PASSED, tests=(), reward=reward)
    return RunResult(
        verdict=verdict, applied=unjudged(verdict, "").applied, evidence=Evidence(), judgement=judgement
    )


async def proven(test: bytes, *, reward: float | None) -> Reference:
    """Return the reference of a row with one test file, whose false runs end with a reward."""

    async def execute(_reference: Reference, _variant: Variant) -> RunResult:
        return run(Verdict.FAILED, reward)

    return await prove(ROW, run(Verdict.PASSED), {"tests/test_a.py": test}, execute, unfixed=Unfixed())


@pytest.mark.parametrize(("reward", "variants"), [(None, 3), (0.0, 3), (0.9, 0)])
async def test_variants_that_keep_a_part_of_the_reward_are_left_out(
    reward: float | None, variants: int
) -> None:
    """A reward such as ``min(1, passed / 10)`` is whole for a solution that passes an eleventh test."""
    assert len((await proven(TEST, reward=reward)).variants) == variants


@pytest.mark.parametrize(
    "line",
    [
        b"@pytest.mark.skipif(not lib.HAS_F, reason='')",
        b"lib = pytest.importorskip('lib')",
        b"@skipUnless(x)",
    ],
)
async def test_files_whose_tests_may_be_skipped_stay_true(line: bytes) -> None:
    reference = await proven(TEST.replace(b"def", line + b"\ndef"), reward=None)
    assert reference.variants == ()
    assert "no test of the row can be made false" in reference.note


THREE = b"from lib import f\n" + b"".join(
    b"\n\ndef test_%c():\n    assert f(%d) == 3%d\n" % (name, number, number)
    for number, name in enumerate(b"abc")
)
FIXED = ("tests/test_a.py::test_a", "tests/test_a.py::test_b")


async def proven_by_name(monkeypatch: pytest.MonkeyPatch, *, halves_run: bool) -> Reference:
    """Return the reference of a row with two fixed tests and another one; a run of one half may break."""
    row = replace(ROW, answer=replace(ROW.answer, fail_to_pass=FIXED, grade_rule=GradeRule.F2P_P2P))
    monkeypatch.setattr(proof, "decoy_choices", lambda own, _draw: [{one: own[one]} for one in own])

    def ended(false: set[str], broken: bool = False) -> RunResult:
        passed, failed = TestOutcome.PASSED, TestOutcome.MISSING if broken else TestOutcome.FAILED
        tests = tuple(
            TestResult(
                test_id=f"tests/test_a.py::{name}",
                kind=TestKind.PASS_TO_PASS,
                outcome=failed if broken or name in false else passed,
            )
            for name in ("test_a", "test_b", "test_c")
        )
        verdict = Verdict.FAILED if false else Verdict.PASSED
        return replace(run(verdict), judgement=Judgement(passed=not false, tests=tests))

    async def execute(_reference: Reference, variant: Variant) -> RunResult:
        false = {name for _, name in false_functions(variant)}
        return ended(false, broken=not halves_run and len(false & {"test_a", "test_b"}) == 1)

    return await prove(
        row, ended(set()), {"tests/test_a.py": THREE}, execute, unfixed=Unfixed(failing=frozenset(FIXED))
    )


async def test_variants_and_decoys_make_the_same_others_false(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = await proven_by_name(monkeypatch, halves_run=True)
    false = [{name for _, name in false_functions(one)} for one in reference.decoys]
    assert sorted(map(sorted, false)) == [["test_a", "test_c"], ["test_b", "test_c"]]
    for variant in reference.variants:
        assert {name for _, name in false_functions(variant)} == {"test_a", "test_b", "test_c"}


async def test_where_a_half_cannot_be_proven_one_decoy_leaves_all_fixed_tests_true(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reference = await proven_by_name(monkeypatch, halves_run=False)
    (decoy,) = reference.decoys
    assert {name for _, name in false_functions(decoy)} == {"test_c"}
    assert len(reference.variants) == 3
