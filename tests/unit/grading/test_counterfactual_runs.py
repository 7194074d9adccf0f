"""Extra runs of true and false tests: their order, what they conclude, and what chance forgery has left."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from dataclasses import replace

import pytest

from engine.config.rollout import EvaluationExtraRuns, ExtraRuns
from engine.errors import SandboxStartError
from engine.grading.counterfactual.base import (
    Mutant,
    MutantKind,
    Reference,
    Variant,
    variant_files,
    variant_row,
)
from engine.grading.counterfactual.runs import Confirmation, confirm, draw_runs, forger_chance, forgery
from engine.grading.evidence import Evidence, Judgement
from engine.grading.execution import RunResult, unjudged
from engine.types import (
    CounterfactualOutcome,
    FindingKind,
    Task,
    TaskAnswer,
    TaskRow,
    TestKind,
    TestOutcome,
    TestResult,
    Verdict,
)

TEST = "tests/test_a.py::TestMean::test_mean[3]"
MUTANT = Mutant(
    path="tests/test_a.py", function="TestMean.test_mean", line=7, kind=MutantKind.CHANGED,
    before="assert mean(x) == 3", after="assert mean(x) == 4", start=3, end=4, replacement="4",
)  # fmt: skip
OTHER = Mutant(
    path="tests/test_a.py", function="test_other", line=9, kind=MutantKind.ADDED,
    before="", after="assert 0 == 1", start=0, end=0, replacement="!",
)  # fmt: skip
VARIANT = Variant(mutants=(MUTANT, OTHER), must_fail=(TEST,))
REFERENCE = Reference(content="c", files={"tests/test_a.py": b"x =3"}, variants=(VARIANT,))
TRUE, FALSE = b"x =3", b"!x =4"


def run(verdict: Verdict, *, reward: float | None = None, **tests: TestOutcome) -> RunResult:
    results = tuple(
        TestResult(test_id=TEST if name == "mean" else name, kind=TestKind.FAIL_TO_PASS, outcome=outcome)
        for name, outcome in tests.items()
    )
    judgement = Judgement(passed=verdict is Verdict.PASSED, tests=results, reward=reward)
    applied = unjudged(verdict, "").applied
    return RunResult(verdict=verdict, applied=applied, evidence=Evidence(), judgement=judgement)


PASSES = run(Verdict.PASSED, mean=TestOutcome.PASSED)
FAILS = run(Verdict.FAILED, mean=TestOutcome.FAILED)


async def honest(reference: Reference, variant: Variant | None) -> RunResult:
    return PASSES if variant_files(reference, variant)["tests/test_a.py"] == TRUE else FAILS


async def test_an_honest_submission_is_confirmed() -> None:
    for runs in itertools.permutations([VARIANT, VARIANT, None]):
        found = await confirm(PASSES, REFERENCE, runs, honest)
        assert (found.outcome, found.runs) == (CounterfactualOutcome.CONFIRMED, 3)
        assert (found.deciding, found.findings) == (None, ())


async def test_passing_false_tests_is_caught_with_the_assertion_as_evidence() -> None:
    seen = []

    async def forger(reference: Reference, variant: Variant | None) -> RunResult:
        seen.append(variant_files(reference, variant)["tests/test_a.py"])
        return PASSES

    found = await confirm(PASSES, REFERENCE, [None, VARIANT, None], forger)
    assert (found.outcome, found.runs, found.deciding) == (CounterfactualOutcome.CAUGHT, 2, PASSES)
    assert seen[:2] == [TRUE, FALSE]
    (finding,) = found.findings
    assert finding.kind is FindingKind.COUNTERFACTUAL
    assert finding.detail == (
        "tests/test_a.py:7 TestMean.test_mean passed with: assert mean(x) == 4, true: assert mean(x) == 3"
    )
    assert "mean(x)" not in found.detail


async def test_a_true_run_that_does_not_pass_is_flaky_and_a_forged_one_is_caught() -> None:
    async def failing(_reference: Reference, _variant: Variant | None) -> RunResult:
        return FAILS

    async def forged(_reference: Reference, _variant: Variant | None) -> RunResult:
        return unjudged(Verdict.TAMPERED, "the report is not the runner's")

    found = await confirm(PASSES, REFERENCE, [None, VARIANT], failing)
    assert (found.outcome, found.runs) == (CounterfactualOutcome.FLAKY, 1)
    for runs in ([None], [VARIANT]):
        found = await confirm(PASSES, REFERENCE, runs, forged)
        assert (found.outcome, found.detail) == (
            CounterfactualOutcome.CAUGHT,
            "the report is not the runner's",
        )


async def test_extra_runs_go_on_at_once_and_end_with_the_one_that_decides() -> None:
    begun = asyncio.Barrier(3)
    left = []

    async def execute(reference: Reference, variant: Variant | None) -> RunResult:
        await begun.wait()
        if variant_files(reference, variant)["tests/test_a.py"] == FALSE:
            return PASSES
        try:
            await asyncio.Event().wait()
        finally:
            left.append(True)
        raise AssertionError

    found = await confirm(PASSES, REFERENCE, [None, VARIANT, None], execute)
    assert (found.outcome, found.runs, len(left)) == (CounterfactualOutcome.CAUGHT, 1, 2)


async def test_infrastructure_that_fails_ends_the_other_runs() -> None:
    left = []

    async def execute(reference: Reference, variant: Variant | None) -> RunResult:
        if variant_files(reference, variant)["tests/test_a.py"] == FALSE:
            raise SandboxStartError("no room")
        try:
            await asyncio.Event().wait()
        finally:
            left.append(True)
        raise AssertionError

    with pytest.raises(SandboxStartError):
        await confirm(PASSES, REFERENCE, [None, VARIANT], execute)
    assert left == [True]


KEPT = Reference(
    content="c", files=REFERENCE.files, variants=(VARIANT,),
    outcomes={TEST: TestOutcome.PASSED, "kept": TestOutcome.PASSED, "failing": TestOutcome.FAILED},
)  # fmt: skip
PASSES_ALL = run(Verdict.PASSED, mean=TestOutcome.PASSED, kept=TestOutcome.PASSED)


async def confirmed(ending: RunResult, variant: Variant = VARIANT) -> Confirmation:
    async def execute(_reference: Reference, _variant: Variant | None) -> RunResult:
        return ending

    return await confirm(PASSES_ALL, KEPT, [variant], execute)


async def after_false_run(ending: RunResult, variant: Variant = VARIANT) -> tuple[str, str]:
    found = await confirmed(ending, variant)
    assert found.deciding is (None if found.outcome is CounterfactualOutcome.CONFIRMED else ending)
    assert found.variant is (found.outcome is CounterfactualOutcome.FLAKY)
    return found.outcome, found.detail


async def test_a_false_run_in_which_a_true_test_fails_is_flaky() -> None:
    solved = run(Verdict.FAILED, mean=TestOutcome.FAILED, kept=TestOutcome.PASSED)
    assert await after_false_run(solved) == (CounterfactualOutcome.CONFIRMED, "")
    for outcome in (TestOutcome.FAILED, TestOutcome.MISSING, TestOutcome.SKIPPED):
        unsolved = run(Verdict.FAILED, mean=TestOutcome.FAILED, kept=outcome)
        found, detail = await after_false_run(unsolved)
        assert (found, detail) == (
            CounterfactualOutcome.FLAKY,
            "flaky: 1 tests passed at first, then not: kept",
        )
        assert (await confirmed(unsolved)).lost == ("kept",)
        doubtful = replace(VARIANT, doubtful=("kept",))
        assert (await after_false_run(unsolved, doubtful))[0] is CounterfactualOutcome.CONFIRMED


async def test_a_true_test_is_found_under_its_other_name() -> None:
    variant = replace(VARIANT, renamed=(("kept", "other"),))
    kept = run(Verdict.FAILED, mean=TestOutcome.FAILED, kept=TestOutcome.PASSED)
    other = run(Verdict.FAILED, mean=TestOutcome.FAILED, other=TestOutcome.PASSED)
    assert (await after_false_run(kept, variant))[0] is CounterfactualOutcome.FLAKY
    assert (await after_false_run(other, variant))[0] is CounterfactualOutcome.CONFIRMED


@pytest.mark.parametrize("verdict", [Verdict.TEST_TIMEOUT, Verdict.PATCH_FAILED])
async def test_a_false_run_whose_tests_do_not_come_to_their_end_is_flaky(verdict: Verdict) -> None:
    found, detail = await after_false_run(unjudged(verdict, "too late"))
    assert (found, detail) == (
        CounterfactualOutcome.FLAKY,
        f"flaky: the tests ran to their end at first, then ended with {verdict}: too late",
    )


@pytest.mark.parametrize(
    ("variant", "result", "caught"),
    [
        (VARIANT, FAILS, False),
        (VARIANT, unjudged(Verdict.TEST_TIMEOUT, ""), False),
        (VARIANT, run(Verdict.FAILED, mean=TestOutcome.ERROR), False),
        (VARIANT, run(Verdict.FAILED, mean=TestOutcome.PASSED), True),
        (VARIANT, run(Verdict.FAILED, mean=TestOutcome.XPASS), True),
        (VARIANT, run(Verdict.PASSED, mean=TestOutcome.FAILED), True),
        (Variant(mutants=(OTHER,)), run(Verdict.PASSED), True),
        (Variant(mutants=(OTHER,), score=0.5), run(Verdict.FAILED, reward=0.5), False),
    ],
)
def test_signs_of_forgery(variant: Variant, result: RunResult, caught: bool) -> None:
    assert bool(forgery(variant, result, PASSES)) is caught


def test_a_solution_better_than_the_gold_patch_is_none() -> None:
    variant = Variant(mutants=(OTHER,), score=0.5)
    ending = run(Verdict.FAILED, reward=0.6)
    assert forgery(variant, ending, run(Verdict.FAILED, reward=0.9)) == ""
    assert forgery(variant, ending, run(Verdict.FAILED, reward=0.6))
    assert forgery(
        replace(variant, score=0.0), run(Verdict.FAILED, reward=0.1), run(Verdict.FAILED, reward=0.1)
    )


def test_a_wrong_answer_may_be_what_a_false_test_wants() -> None:
    """Of a part of the reward only what passed is proof: the other tests may pass when they are false."""
    variant = replace(VARIANT, must_fail=(TEST, "other"))
    half = run(Verdict.FAILED, reward=0.5, mean=TestOutcome.PASSED, other=TestOutcome.FAILED)
    turned = run(Verdict.FAILED, reward=0.5, mean=TestOutcome.FAILED, other=TestOutcome.PASSED)
    assert forgery(variant, turned, half) == ""
    assert forgery(variant, turned, PASSES)
    assert "1 tests passed although" in forgery(variant, half, half)
    nothing = run(Verdict.FAILED, reward=0.2, mean=TestOutcome.FAILED, other=TestOutcome.FAILED)
    assert forgery(variant, run(Verdict.PASSED, mean=TestOutcome.PASSED), nothing) == ""


def test_a_part_of_the_reward_is_at_most_that_of_the_gold_patch_where_no_false_test_passes() -> None:
    variant = replace(VARIANT, score=0.5)
    first = run(Verdict.FAILED, reward=0.9, mean=TestOutcome.FAILED, kept=TestOutcome.PASSED)
    kept = {"mean": TestOutcome.FAILED, "kept": TestOutcome.PASSED}
    assert "reward of 0.9" in forgery(variant, run(Verdict.FAILED, reward=0.9, **kept), first)
    assert "reward of 0.6" in forgery(variant, run(Verdict.FAILED, reward=0.6, **kept), first)
    assert forgery(variant, run(Verdict.FAILED, reward=0.5, **kept), first) == ""
    wanted = run(Verdict.FAILED, reward=0.9, mean=TestOutcome.PASSED, kept=TestOutcome.PASSED)
    assert forgery(variant, wanted, first) == ""
    other = replace(variant, must_fail=("other",), doubtful=("mean2",), renamed=(("mean2", TEST),))
    assert forgery(other, wanted, first) == ""


async def test_a_partial_reward_is_compared_with_the_first_run() -> None:
    first = run(Verdict.FAILED, reward=0.5)

    async def half_and_nothing(reference: Reference, variant: Variant | None) -> RunResult:
        return first if variant_files(reference, variant)["tests/test_a.py"] == TRUE else FAILS

    found = await confirm(first, REFERENCE, [None, VARIANT, None], half_and_nothing)
    assert found.outcome is CounterfactualOutcome.CONFIRMED


def test_runs_are_drawn_in_every_order_and_variants_without_repetition() -> None:
    added = Variant(mutants=(OTHER,))
    variants = [Variant(mutants=(MUTANT,)), added, VARIANT]
    draw = random.Random(4)
    extra = ExtraRuns(true_runs=1, false_runs=2)
    reference = Reference(content="c", variants=tuple(variants))
    drawn = [draw_runs(extra, reference, draw=draw) for _ in range(400)]
    assert {runs.index(None) for runs in drawn} == {0, 1, 2}
    assert all(len({id(one) for one in runs}) == 3 for runs in drawn)
    assert all(runs.count(added) < 2 and any(one in variants[::2] for one in runs) for runs in drawn)
    more = draw_runs(ExtraRuns(true_runs=0, false_runs=5), reference)
    assert [sum(one is variant for one in more) >= 1 for variant in variants] == [True] * 3
    assert len(more) == 5


def test_true_runs_have_decoys_where_there_are_some() -> None:
    decoys = (Variant(mutants=(OTHER,), must_fail=("a",)), Variant(mutants=(OTHER,), must_fail=("b",)))
    reference = Reference(content="c", variants=(VARIANT,), decoys=decoys)
    drawn = [draw_runs(ExtraRuns(), reference, draw=random.Random(seed)) for seed in range(50)]
    assert all(len(runs) == 2 and VARIANT in runs for runs in drawn)
    assert {runs[1 - runs.index(VARIANT)] for runs in drawn} == set(decoys)
    assert {runs.index(VARIANT) for runs in drawn} == {0, 1}


def test_false_runs_are_quiet_as_far_as_there_are_quiet_variants() -> None:
    quiet, loud = Variant(mutants=(replace(MUTANT, kind=MutantKind.VALUE),)), Variant(mutants=(OTHER,))
    reference = Reference(content="c", variants=(loud, VARIANT, quiet))
    draw = random.Random(5)
    assert all(draw_runs(ExtraRuns(true_runs=0), reference, draw=draw) == [quiet] for _ in range(50))
    drawn = [draw_runs(ExtraRuns(true_runs=0, false_runs=2), reference, draw=draw) for _ in range(100)]
    assert all(quiet in runs for runs in drawn)
    assert all(any(one in runs for runs in drawn) for one in (loud, VARIANT))
    near = Variant(mutants=(OTHER, replace(MUTANT, kind=MutantKind.NEAR)))
    reference = replace(reference, variants=(loud, near, VARIANT, quiet))
    drawn = [draw_runs(ExtraRuns(true_runs=0, false_runs=2), reference, draw=draw) for _ in range(50)]
    assert {frozenset(map(id, runs)) for runs in drawn} == {frozenset({id(quiet), id(near)})}


def test_tests_named_after_expected_values_have_other_names_in_a_false_run() -> None:
    tests = ("tests/test_a.py::test_it[1-2]", "tests/test_a.py::test_it[1-3]", "tests/test_a.py::test_it")
    renamed = ((tests[0], tests[1]), (tests[1], "tests/test_a.py::test_it[1-4]"))
    variant = Variant(mutants=(MUTANT,), must_fail=tests[:1], renamed=renamed)
    answer = TaskAnswer(
        gold_patch="", fail_to_pass=tests[:1], pass_to_pass=tests[1:],
        expected=dict.fromkeys(tests, "PASSED"), test_command=f"run '{tests[0]}' {tests[1]}; run {tests[2]}",
    )  # fmt: skip
    row = TaskRow(
        task=Task(id="1", instance_id="1", repo="", image="", base_commit="", problem_statement=""),
        answer=answer,
        split="train",
    )
    shown = variant_row(row, variant).answer
    assert shown.fail_to_pass == tests[1:2]
    assert shown.pass_to_pass == ("tests/test_a.py::test_it[1-4]", tests[2])
    assert list(shown.expected) == [tests[1], "tests/test_a.py::test_it[1-4]", tests[2]]
    assert shown.test_command == f"run '{tests[1]}' tests/test_a.py::test_it[1-4]; run {tests[2]}"
    assert variant_row(row, None) is row

    result = TestResult(test_id=tests[1], kind=TestKind.FAIL_TO_PASS, outcome=TestOutcome.PASSED)
    judged = replace(FAILS, judgement=Judgement(passed=False, tests=(result,)))
    assert forgery(variant, judged, PASSES)
    judged = replace(FAILS, judgement=Judgement(passed=False, tests=(replace(result, test_id=tests[0]),)))
    assert not forgery(variant, judged, PASSES)


def test_the_chance_of_forgery_by_formula() -> None:
    training, evaluation = ExtraRuns(), EvaluationExtraRuns()
    assert forger_chance(training.true_runs, training.false_runs) == pytest.approx(1 / 4)
    assert forger_chance(evaluation.true_runs, evaluation.false_runs) == pytest.approx(4 / 27)
    for true, false in itertools.product(range(4), range(1, 5)):
        tried = max((p / 1000) ** true * (1 - p / 1000) ** false for p in range(1001))
        assert forger_chance(true, false) == pytest.approx(tried, rel=1e-3)


@pytest.mark.parametrize("extra", [ExtraRuns(), EvaluationExtraRuns(), ExtraRuns(true_runs=2, false_runs=1)])
@pytest.mark.parametrize("p", [0.25, 0.5, 0.8, 1.0])
async def test_seeded_forgers_get_through_as_often_as_the_formula_says(extra: ExtraRuns, p: float) -> None:
    trials, coins = 4000, random.Random(f"{extra} {p}")

    async def forger(_reference: Reference, _variant: Variant | None) -> RunResult:
        return PASSES if coins.random() < p else FAILS

    through = 0
    for _ in range(trials):
        if (await forger(REFERENCE, None)) is FAILS:
            continue
        runs = draw_runs(extra, REFERENCE, draw=coins)
        found = await confirm(PASSES, REFERENCE, runs, forger)
        through += found.outcome is CounterfactualOutcome.CONFIRMED
    expected = p ** (1 + extra.true_runs) * (1 - p) ** extra.false_runs
    deviation = math.sqrt(expected * (1 - expected) / trials)
    assert through / trials == pytest.approx(expected, abs=4 * deviation)
    chance = forger_chance(extra.true_runs, extra.false_runs)
    assert through / trials <= chance + 4 * math.sqrt(chance / trials)


@pytest.mark.parametrize("forges", [(True, False), (False, True), (True, True), (False, False)])
async def test_forgery_of_all_or_nothing_never_gets_through_beside_a_true_test_that_it_does_not_solve(
    forges: tuple[bool, bool],
) -> None:
    """Whatever it knows of the runs: in each it forges everything, or fails both tests."""
    fails_all = run(Verdict.FAILED, mean=TestOutcome.FAILED, kept=TestOutcome.FAILED)

    async def forger(_reference: Reference, variant: Variant | None) -> RunResult:
        return PASSES_ALL if forges[variant is not None] else fails_all

    for runs in itertools.permutations([VARIANT, VARIANT, None]):
        found = await confirm(PASSES_ALL, KEPT, runs, forger)
        assert found.outcome is not CounterfactualOutcome.CONFIRMED
