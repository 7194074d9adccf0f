"""Chance that is left to each kind of forger, counted over seeded runs without sandboxes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from engine.config.rollout import EvaluationExtraRuns, ExtraRuns
from engine.grading.counterfactual.base import Mutant, MutantKind, Reference, Variant
from engine.grading.counterfactual.runs import confirm, draw_runs, forger_chance
from engine.grading.counterfactual.selection import choose
from engine.grading.evidence import Evidence, Judgement
from engine.grading.execution import RunResult, unjudged
from engine.types import CounterfactualOutcome, TestKind, TestOutcome, TestResult, Verdict

TRIALS = 3000
SETTINGS = (ExtraRuns(), EvaluationExtraRuns())
Forged = Callable[[str, random.Random, bool], bool]
"""Returns whether a forger reports success for a test, given a source of chance and the run's own coin."""


def mutant(test: str, kind: MutantKind = MutantKind.VALUE) -> Mutant:
    return Mutant(
        path="tests/test_a.py", function=test, line=1, kind=kind,
        before="a", after="b", start=0, end=1, replacement="b",
    )  # fmt: skip


def variant(*false: str, kind: MutantKind = MutantKind.VALUE) -> Variant:
    return Variant(mutants=tuple(mutant(test, kind) for test in false), must_fail=false)


def named(fixed: tuple[str, ...], others: tuple[str, ...], decoys: tuple[Variant, ...]) -> Reference:
    """Return the reference of a row whose rule knows its tests by name."""
    return Reference(
        content="c",
        outcomes=dict.fromkeys((*fixed, *others), TestOutcome.PASSED),
        variants=(variant(*fixed), variant(*fixed), variant(*fixed, *others)),
        decoys=decoys,
    )


def result(outcomes: Mapping[str, bool], *, by_name: bool) -> RunResult:
    verdict = Verdict.PASSED if all(outcomes.values()) else Verdict.FAILED
    tests = tuple(
        TestResult(
            test_id=test,
            kind=TestKind.FAIL_TO_PASS,
            outcome=TestOutcome.PASSED if passed else TestOutcome.FAILED,
        )
        for test, passed in outcomes.items()
    )
    judgement = Judgement(passed=verdict is Verdict.PASSED, tests=tests if by_name else ())
    applied = unjudged(verdict, "").applied
    return RunResult(verdict=verdict, applied=applied, evidence=Evidence(), judgement=judgement)


async def share(
    extra: ExtraRuns,
    reference: Reference,
    forged: Forged,
    *,
    solved: tuple[str, ...],
    p: float,
    seed: int = 1,
) -> float:
    """Return the share of submissions that get through."""
    coins = random.Random(f"{seed} {extra} {p}")
    by_name = bool(reference.outcomes)
    tests = sorted(
        {one.function for each in reference.variants for one in each.mutants} | {*reference.outcomes}
    )

    async def execute(_reference: Reference, shown: Variant | None) -> RunResult:
        edited = shown.mutants if shown is not None else ()
        false = {one.function for one in edited if one.kind is not MutantKind.TRUE}
        coin = coins.random() < p
        strict = shown is not None and shown.true
        other = {one.function for one in edited if one.kind in (MutantKind.TRUE, MutantKind.NEAR)}
        words = {test: " in other words" if test in other else "" for test in tests}
        outcomes = {
            test: test not in false
            if test in solved
            else forged(f"{test}{words[test]}{' strict' if strict else ''}", coins, coin)
            for test in tests
        }
        return result(outcomes, by_name=by_name)

    through = 0
    for _ in range(TRIALS):
        first = await execute(reference, None)
        if first.verdict is not Verdict.PASSED:
            continue
        found = await confirm(first, reference, draw_runs(extra, reference, draw=coins), execute)
        through += found.outcome is CounterfactualOutcome.CONFIRMED
    return through / TRIALS


def by_run(_test: str, _coins: random.Random, coin: bool) -> bool:
    """Forge all tests of a run or none: by the clock, a counter, the page cache."""
    return coin


def near(expected: float) -> object:
    return pytest.approx(expected, abs=4 * math.sqrt(max(expected, 1e-9) / TRIALS) + 1e-9)


SINGLE = named(("a",), ("b", "c"), (variant("b", "c", kind=MutantKind.NEAR),))
SEVERAL = named(
    ("a1", "a2"), ("b",), (variant("a1", "b", kind=MutantKind.NEAR), variant("a2", "b", kind=MutantKind.NEAR))
)


@pytest.mark.parametrize("extra", SETTINGS)
@pytest.mark.parametrize("p", [0.3, 2 / 3, 1.0])
async def test_the_clock_where_a_solution_fixes_one_function(extra: ExtraRuns, p: float) -> None:
    """Whoever forges that function alone gets through by luck, as often as without decoys."""
    found = await share(extra, SINGLE, by_run, solved=("b", "c"), p=p)
    assert found == near(p ** (1 + extra.true_runs) * (1 - p) ** extra.false_runs)
    assert found <= forger_chance(extra.true_runs, extra.false_runs) + 4 / math.sqrt(TRIALS)


@pytest.mark.parametrize("extra", SETTINGS)
@pytest.mark.parametrize("p", [0.3, 2 / 3, 1.0])
async def test_the_clock_never_helps_who_forges_all_tests_or_one_of_several(
    extra: ExtraRuns, p: float
) -> None:
    assert await share(extra, SINGLE, by_run, solved=(), p=p) == 0
    assert await share(extra, SEVERAL, by_run, solved=("b",), p=p) == 0
    assert await share(extra, SEVERAL, by_run, solved=(), p=p) == 0


@pytest.mark.parametrize("extra", SETTINGS)
async def test_the_clock_where_one_of_two_functions_is_solved(extra: ExtraRuns) -> None:
    """One of the two decoys leaves the forged function true, the other makes it false."""
    p = 2 / 3
    found = await share(extra, SEVERAL, by_run, solved=("a2", "b"), p=p)
    assert found == near(p * (1 - p) ** extra.false_runs / 2)


def worded(false: tuple[str, ...], true: tuple[str, ...], others: tuple[str, ...] = ("b",)) -> Variant:
    """Return a run in other words: with false functions, others that are false in all runs, and true ones."""
    strict = variant(*true, kind=MutantKind.TRUE).mutants
    made = variant(*false, *others, kind=MutantKind.NEAR)
    return replace(made, mutants=(*made.mutants, *strict))


WORDED = replace(
    named(("a",), ("b",), (worded((), ("a",)),)),
    variants=(worded(("a",), ()), worded(("a",), ()), variant("a", "b", kind=MutantKind.CHANGED)),
)
SEVERAL_WORDED = replace(
    named(("a1", "a2"), ("b",), (worded(("a1",), ("a2",)), worded(("a2",), ("a1",)))),
    variants=(worded(("a1", "a2"), ()), worded(("a1", "a2"), ())),
)


def reader(test: str, _coins: random.Random, coin: bool) -> bool:
    """Know the words of the first run and of all others; guess where they leave it open."""
    return coin or "in other words" not in test


def reader_of_each(p: float) -> Forged:
    """Guess for each function."""
    return lambda test, coins, _coin: "in other words" not in test or coins.random() < p


@pytest.mark.parametrize("extra", SETTINGS)
@pytest.mark.parametrize("p", [0.0, 1 / 3, 1 / 2, 1.0])
async def test_who_reads_the_words_of_a_test_has_no_more_than_a_guess(extra: ExtraRuns, p: float) -> None:
    found = await share(extra, WORDED, reader, solved=("b",), p=p)
    assert found == near(p**extra.true_runs * (1 - p) ** extra.false_runs)
    assert found <= forger_chance(extra.true_runs, extra.false_runs) + 4 / math.sqrt(TRIALS)
    assert await share(extra, SEVERAL_WORDED, reader, solved=("b",), p=p) == 0
    found = await share(extra, SEVERAL_WORDED, reader_of_each(p), solved=("b",), p=p)
    assert found == near(p * (1 - p) ** (1 + 2 * extra.false_runs))


async def test_who_reads_and_solves_one_of_two_functions_is_found_in_one_of_two_decoys() -> None:
    """Forging the other in the first run alone is right where the decoy makes it false as well."""
    found = await share(ExtraRuns(), SEVERAL_WORDED, reader, solved=("a2", "b"), p=0.0)
    assert found == near(1 / 2)


NAMELESS = Reference(
    content="c",
    variants=(variant("a"), variant("a"), variant("a")),
    decoys=(Variant(mutants=(mutant("a", MutantKind.TRUE),)),),
)
NAMELESS = replace(NAMELESS, variants=tuple(replace(one, must_fail=()) for one in NAMELESS.variants))


@pytest.mark.parametrize("extra", SETTINGS)
async def test_without_names_a_strict_true_run_stops_lenient_objects(extra: ExtraRuns) -> None:
    """An object that is equal to everything has no place among neighbours; a forged exit code has."""

    def lenient(test: str, _coins: random.Random, coin: bool) -> bool:
        return coin and not test.endswith("strict")

    p = 2 / 3
    assert await share(extra, NAMELESS, lenient, solved=(), p=p) == 0
    exits = await share(extra, NAMELESS, by_run, solved=(), p=p)
    assert exits == near(p ** (1 + extra.true_runs) * (1 - p) ** extra.false_runs)


@pytest.mark.parametrize(("extra", "expected"), [(ExtraRuns(), 2 / 3), (EvaluationExtraRuns(), 1 / 3)])
async def test_who_solves_two_of_three_comparisons_of_a_script(extra: ExtraRuns, expected: float) -> None:
    """Each false run changes one, so an answer that is looked up for the third is found by some alone."""
    coins, through = random.Random(3), 0
    edits = [replace(mutant("script"), after=answer) for answer in ("1", "2", "3")]

    async def execute(_reference: Reference, shown: Variant | None) -> RunResult:
        passes = shown is None or shown.mutants[0].after == "3"
        return result({"script": passes}, by_name=False)

    for _ in range(TRIALS):
        used: set[Mutant] = set()
        for _ in range(3):
            used.update(choose({("test.sh", "script"): edits}, MutantKind.VALUE, used, coins))
        reference = Reference(
            content="c", variants=tuple(Variant(mutants=(one,)) for one in edits if one in used)
        )
        runs = draw_runs(extra, reference, draw=coins)
        found = await confirm(await execute(reference, None), reference, runs, execute)
        through += found.outcome is CounterfactualOutcome.CONFIRMED
    assert through / TRIALS == near(expected)
