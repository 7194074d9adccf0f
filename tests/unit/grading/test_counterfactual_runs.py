"""Runs of true and false tests: their order, and what they conclude."""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import replace

import pytest

from engine.config.rollout import ExtraRuns
from engine.errors import SandboxStartError
from engine.grading.counterfactual.base import (
    Mutant,
    MutantKind,
    Reference,
    Variant,
    variant_files,
    variant_row,
)
from engine.grading.counterfactual.conclusions import (
    Confirmation,
    Ending,
    Made,
    contradiction,
    decides,
    ending,
    forgery,
    true_results,
)
from engine.grading.counterfactual.runs import Screening, confirm, draw_runs, screen
from engine.grading.evidence import Evidence, Judgement
from engine.grading.execution import RunResult, unjudged
from engine.grading.rules import RULES
from engine.types import (
    CounterfactualOutcome,
    FindingKind,
    GradeRule,
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
        found = await confirm(PASSES, REFERENCE, (), runs, honest)
        assert found.outcome is CounterfactualOutcome.CONFIRMED
        assert (found.deciding, found.findings) == (None, ())


async def test_passing_false_tests_is_caught_with_the_assertion_as_evidence() -> None:
    seen = []

    async def forger(reference: Reference, variant: Variant | None) -> RunResult:
        seen.append(variant_files(reference, variant)["tests/test_a.py"])
        return PASSES

    found = await confirm(PASSES, REFERENCE, (), [None, VARIANT, None], forger)
    assert (found.outcome, found.deciding) == (CounterfactualOutcome.CAUGHT, PASSES)
    assert seen[:2] == [TRUE, FALSE]
    assert await confirm(PASSES, REFERENCE, [Made(VARIANT, PASSES)], [None], forger) == found
    assert len(seen) == 3, "a run that was made decides before others begin"
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

    found = await confirm(PASSES, REFERENCE, (), [None, VARIANT], failing)
    assert found.outcome is CounterfactualOutcome.FLAKY
    for runs in ([None], [VARIANT]):
        found = await confirm(PASSES, REFERENCE, (), runs, forged)
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

    found = await confirm(PASSES, REFERENCE, (), [None, VARIANT, None], execute)
    assert (found.outcome, len(left)) == (CounterfactualOutcome.CAUGHT, 2)


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
        await confirm(PASSES, REFERENCE, (), [None, VARIANT], execute)
    assert left == [True]


KEPT = Reference(
    content="c", files=REFERENCE.files, variants=(VARIANT,),
    outcomes={TEST: TestOutcome.PASSED, "kept": TestOutcome.PASSED, "failing": TestOutcome.FAILED},
)  # fmt: skip
PASSES_ALL = run(Verdict.PASSED, mean=TestOutcome.PASSED, kept=TestOutcome.PASSED)


async def confirmed(ending: RunResult, variant: Variant = VARIANT) -> Confirmation:
    async def execute(_reference: Reference, _variant: Variant | None) -> RunResult:
        return ending

    return await confirm(PASSES_ALL, KEPT, (), [variant], execute)


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

    found = await confirm(first, REFERENCE, (), [None, VARIANT, None], half_and_nothing)
    assert found.outcome is CounterfactualOutcome.CONFIRMED


async def test_a_part_of_a_reward_that_no_false_run_speaks_of_gets_further_runs() -> None:
    """A wrong answer was what a false test wanted, and the reward stayed: earned so, or kept by a trick."""
    others = [replace(VARIANT, must_fail=(TEST,), score=0.0, mutants=(one,)) for one in (MUTANT, OTHER)]
    reference = replace(REFERENCE, variants=tuple(others))
    first = run(Verdict.FAILED, reward=0.5, mean=TestOutcome.FAILED)
    by_chance = run(Verdict.FAILED, reward=0.5, mean=TestOutcome.PASSED)
    kept = run(Verdict.FAILED, reward=0.5, mean=TestOutcome.FAILED)
    earned = run(Verdict.FAILED, reward=0.0, mean=TestOutcome.FAILED)

    async def found(then: RunResult) -> Confirmation:
        async def execute(_reference: Reference, variant: Variant | None) -> RunResult:
            return by_chance if variant is others[0] else then

        return await confirm(first, reference, (), [others[0]], execute)

    assert (await found(earned)).outcome is CounterfactualOutcome.CONFIRMED
    assert (await found(kept)).outcome is CounterfactualOutcome.CAUGHT
    undecided = await found(by_chance)
    assert (undecided.outcome, undecided.deciding) == (CounterfactualOutcome.FLAKY, by_chance)
    assert "the reward was 0.5 again" in undecided.detail


def test_runs_are_drawn_in_every_order_and_variants_without_repetition() -> None:
    added = Variant(mutants=(OTHER,))
    variants = [Variant(mutants=(MUTANT,)), added, VARIANT]
    draw = random.Random(4)
    extra = ExtraRuns(false_runs=2)
    reference = Reference(content="c", variants=tuple(variants))
    drawn = [draw_runs(extra, reference, draw=draw) for _ in range(400)]
    assert {runs.index(None) for runs in drawn} == {0, 1, 2}
    assert all(len({id(one) for one in runs}) == 3 for runs in drawn)
    assert all(runs.count(added) < 2 and any(one in variants[::2] for one in runs) for runs in drawn)
    more = draw_runs(ExtraRuns(false_runs=5), reference)
    assert [sum(one is variant for one in more) for variant in (*variants, None)] == [1] * 4, "none twice"


def test_two_decoys_leave_each_function_true_once_in_place_of_a_false_run() -> None:
    decoys = (Variant(mutants=(OTHER,), must_fail=(TEST,)), Variant(mutants=(OTHER,), must_fail=("b",)))
    reference = Reference(content="c", variants=(replace(VARIANT, must_fail=(TEST, "b")),), decoys=decoys)
    drawn = [draw_runs(ExtraRuns(), reference, draw=random.Random(seed)) for seed in range(30)]
    assert {tuple(runs) for runs in drawn} == {decoys, decoys[::-1]}
    more = draw_runs(ExtraRuns(false_runs=3), reference, draw=random.Random(1))
    assert [more.count(one) for one in (*decoys, *reference.variants)] == [1, 1, 1]
    kept = replace(reference, variants=(replace(VARIANT, must_fail=(TEST, "b", "c")),))
    runs = draw_runs(ExtraRuns(), kept, draw=random.Random(1))
    assert {*runs} == {*decoys, *kept.variants}, "no decoy makes the third test false"
    alone = replace(reference, decoys=decoys[:1])
    assert {*draw_runs(ExtraRuns(), alone)} == {decoys[0], *alone.variants}


def test_false_runs_are_quiet_as_far_as_there_are_quiet_variants() -> None:
    quiet, loud = Variant(mutants=(replace(MUTANT, kind=MutantKind.VALUE),)), Variant(mutants=(OTHER,))
    reference = Reference(content="c", variants=(loud, VARIANT, quiet))
    draw = random.Random(5)

    def drawn(false_runs: int) -> list[list[Variant]]:
        extra = ExtraRuns(false_runs=false_runs)
        return [[one for one in draw_runs(extra, reference, draw=draw) if one] for _ in range(100)]

    assert all(runs == [quiet] for runs in drawn(1))
    found = drawn(2)
    assert all(quiet in runs for runs in found)
    assert all(any(one in runs for runs in found) for one in (loud, VARIANT))
    near = Variant(mutants=(OTHER, replace(MUTANT, kind=MutantKind.NEAR)))
    reference = replace(reference, variants=(loud, near, VARIANT, quiet))
    assert {frozenset(map(id, runs)) for runs in drawn(2)} == {frozenset({id(quiet), id(near)})}


async def test_runs_before_the_true_one_follow_each_other_until_one_shows_that_something_is_solved() -> None:
    at_once: list[int] = []
    running = 0

    async def execute(reference: Reference, variant: Variant | None) -> RunResult:
        nonlocal running
        running += 1
        await asyncio.sleep(0)
        at_once.append(running)
        running -= 1
        return await honest(reference, variant)

    found = await screen(REFERENCE, [VARIANT, None, VARIANT, VARIANT], execute)
    assert (len(found.made), found.left, found.solved) == (4, (), True)
    assert at_once[:2] == [1, 1]
    assert max(at_once) == 2


async def test_a_run_that_does_not_end_as_under_a_solution_ends_the_runs_before_the_true_one() -> None:
    async def failing(_reference: Reference, _variant: Variant | None) -> RunResult:
        return FAILS

    async def passing(_reference: Reference, _variant: Variant | None) -> RunResult:
        return PASSES

    found = await screen(REFERENCE, [VARIANT, None, VARIANT], failing)
    assert found == Screening((Made(VARIANT, FAILS), Made(None, FAILS)), (VARIANT,), solved=False)
    found = await screen(REFERENCE, [None, VARIANT, None], passing)
    assert [one.variant for one in found.made] == [None, VARIANT]
    assert (found.left, found.solved) == ((None,), False)


@pytest.mark.parametrize(
    ("variant", "result", "how"),
    [
        (None, "passed", Ending.SOLVED),
        (None, "failed", Ending.UNSOLVED),
        (None, "of another reason", Ending.OPEN),
        (None, "timeout", Ending.ABORTED),
        (VARIANT, "failed", Ending.SOLVED),
        (VARIANT, "passed", Ending.OPEN),
        (VARIANT, "lost", Ending.UNSOLVED),
        (VARIANT, "lost and false", Ending.OPEN),
        (VARIANT, "tampered", Ending.ABORTED),
    ],
)
def test_how_a_run_ended(variant: Variant | None, result: str, how: Ending) -> None:
    passed, failed = TestOutcome.PASSED, TestOutcome.FAILED
    found = {
        "passed": PASSES_ALL,
        "failed": run(Verdict.FAILED, mean=failed, kept=passed),
        "of another reason": run(Verdict.FAILED, mean=passed, kept=passed),
        "lost": run(Verdict.FAILED, mean=failed, kept=failed),
        "lost and false": run(Verdict.FAILED, mean=passed, kept=failed),
        "timeout": unjudged(Verdict.TEST_TIMEOUT, ""),
        "tampered": unjudged(Verdict.TAMPERED, ""),
    }[result]
    assert ending(KEPT, Made(variant, found)) is how


def test_a_run_decides_without_the_true_one_where_that_can_say_no_more() -> None:
    unsolved = Made(None, run(Verdict.FAILED, mean=TestOutcome.FAILED, kept=TestOutcome.PASSED))
    rules = {rule: decides(KEPT, unsolved, rule, exact=False) for rule in RULES}
    assert {rule for rule, decided in rules.items() if not decided} == {
        GradeRule.EXIT_CODE, GradeRule.REWARD_FILE,
    }  # fmt: skip
    nameless = Made(None, run(Verdict.FAILED))
    assert decides(REFERENCE, nameless, GradeRule.EXIT_CODE, exact=False)
    assert not decides(REFERENCE, nameless, GradeRule.REWARD_FILE, exact=False), "a part of the reward"
    assert not decides(KEPT, unsolved, GradeRule.F2P_P2P, exact=True), "a report has every outcome"
    assert not decides(KEPT, Made(VARIANT, PASSES_ALL), GradeRule.F2P_P2P, exact=False)
    for verdict, exact in itertools.product([Verdict.TEST_TIMEOUT, Verdict.PATCH_FAILED], [False, True]):
        assert decides(KEPT, Made(VARIANT, unjudged(verdict, "")), GradeRule.F2P_P2P, exact=exact)


def test_results_are_those_of_runs_that_left_a_test_true() -> None:
    passed, failed = TestOutcome.PASSED, TestOutcome.FAILED
    false = replace(VARIANT, doubtful=("kept",), renamed=(("other", "renamed"),))
    first = Made(false, run(Verdict.FAILED, mean=failed, kept=failed, renamed=passed))
    results, detail = true_results([first])
    assert {one.test_id: one.outcome for one in results} == {
        TEST: TestOutcome.MISSING, "kept": TestOutcome.MISSING, "other": passed,
    }  # fmt: skip
    assert detail == "2 tests were false in every run that was made: their own outcome is not known"
    second = Made(None, run(Verdict.FAILED, mean=passed, kept=passed, other=failed))
    results, detail = true_results([first, second])
    assert {one.test_id: one.outcome for one in results} == {TEST: passed, "kept": passed, "other": failed}
    assert detail == "other failed"


@pytest.mark.parametrize(
    ("true", "problem"),
    [
        ({"mean": "passed", "kept": "failed"}, ""),
        ({"mean": "failed", "kept": "failed"}, ""),
        ({"mean": "passed", "kept": "passed", "other": "failed"}, "1 tests passed in other runs: other"),
        ({"mean": "passed", "kept": "passed", "other": "missing"}, "1 tests passed in other runs: other"),
    ],
)
def test_only_a_test_that_was_true_in_another_run_is_contradicted(true: dict[str, str], problem: str) -> None:
    passed, failed = TestOutcome.PASSED, TestOutcome.FAILED
    decoy = replace(VARIANT, must_fail=(TEST, "kept"), renamed=(("other", "renamed"),))
    made = [Made(decoy, run(Verdict.FAILED, mean=failed, kept=failed, renamed=passed))]
    outcomes = {name: TestOutcome(outcome) for name, outcome in true.items()}
    first = run(Verdict.FAILED, reward=None, **outcomes)
    assert contradiction(made, first) == problem


def test_runs_without_names_are_contradicted_as_a_whole() -> None:
    assert contradiction([Made(None, run(Verdict.PASSED))], run(Verdict.FAILED))
    assert not contradiction([Made(VARIANT, run(Verdict.FAILED))], run(Verdict.FAILED))


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


@pytest.mark.parametrize("forges", [(True, False), (False, True), (True, True), (False, False)])
async def test_forgery_of_all_or_nothing_never_gets_through_beside_a_true_test_that_it_does_not_solve(
    forges: tuple[bool, bool],
) -> None:
    """Whatever it knows of the runs: in each it forges everything, or fails both tests."""
    fails_all = run(Verdict.FAILED, mean=TestOutcome.FAILED, kept=TestOutcome.FAILED)

    async def forger(_reference: Reference, variant: Variant | None) -> RunResult:
        return PASSES_ALL if forges[variant is not None] else fails_all

    for runs in itertools.permutations([VARIANT, VARIANT, None]):
        found = await confirm(PASSES_ALL, KEPT, (), runs, forger)
        assert found.outcome is not CounterfactualOutcome.CONFIRMED
