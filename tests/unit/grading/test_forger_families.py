"""Chance that is left to each kind of forger, counted over seeded runs without sandboxes.

A forger knows the author's words, so it forges the last run, and only the runs before it are left to chance.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from engine.config.rollout import EvaluationExtraRuns, ExtraRuns
from engine.grading.counterfactual.base import Mutant, MutantKind, Reference, Variant
from engine.grading.counterfactual.runs import confirm, draw_runs, forger_chance, screen
from engine.grading.counterfactual.selection import choose, decoy_choices, false_functions
from engine.grading.evidence import Evidence, Judgement
from engine.grading.execution import RunResult, unjudged
from engine.types import CounterfactualOutcome, TestKind, TestOutcome, TestResult, Verdict

TRIALS = 1200
SETTINGS = (ExtraRuns(), EvaluationExtraRuns())
PATH = "tests/test_a.py"


@dataclass(frozen=True, slots=True)
class View:
    """What a forger sees of a run from inside."""

    texts: Mapping[str, int]
    """Function → number of its text, which tells nothing but whether two texts are the same."""
    solved: Mapping[str, bool]
    """Function that the forger solves → whether it is true."""
    strict: bool
    """Whether results that are equal to several values fail."""


Forger = Callable[[View, str], bool]
"""Returns whether success is reported for a function that is not solved; it may remember earlier runs."""
Begin = Callable[[random.Random], Forger]
"""Makes the forger of one submission, given a source of chance."""
Draw = Callable[[random.Random], Reference]


def mutant(test: str, kind: MutantKind, after: str = "") -> Mutant:
    return Mutant(
        path=PATH, function=test, line=1, kind=kind, before="a", after=after, start=0, end=1, replacement="b"
    )


def variant(*false: str, kind: MutantKind = MutantKind.NEAR, name: str = "") -> Variant:
    return Variant(mutants=tuple(mutant(test, kind, name) for test in false), must_fail=false)


def named(fixed: tuple[str, ...], others: tuple[str, ...] = ("b",)) -> Draw:
    """Return the function that draws the reference of a row whose rule knows its tests by name."""

    def draw(coins: random.Random) -> Reference:
        own = {(PATH, test): [mutant(test, MutantKind.NEAR)] for test in fixed}
        halves = [[test for _, test in half] for half in decoy_choices(own, coins)]
        return Reference(
            content="c",
            outcomes=dict.fromkeys((*fixed, *others), TestOutcome.PASSED),
            variants=tuple(variant(*fixed, *others, name=f"false {number}") for number in range(2)),
            decoys=tuple(variant(*half, *others, name=f"decoy {one}") for one, half in enumerate(halves)),
        )

    return draw


SINGLE = named(("a",), ("b", "c"))
SEVERAL = named(("a1", "a2"))


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


def seen(tests: Sequence[str], shown: Variant | None, solved: Sequence[str], numbers: dict[str, int]) -> View:
    """Return what a run shows; ``numbers`` keeps the texts of the runs of a submission."""
    edited = shown.mutants if shown is not None else ()
    false = {one.function: one.after for one in edited if one.kind is not MutantKind.TRUE}
    texts = {test: numbers.setdefault(f"{test} {false.get(test, 'true')}", len(numbers)) for test in tests}
    strict = shown is not None and shown.true
    return View(texts, {test: test not in false for test in solved}, strict)


async def share(extra: ExtraRuns, draw: Draw, begin: Begin, *, solved: tuple[str, ...] = ()) -> float:
    """Return the share of submissions that get through."""
    coins, through = random.Random(f"{extra} {solved}"), 0
    for _ in range(TRIALS):
        reference, forger = draw(coins), begin(coins)
        tests = sorted({one.function for each in reference.variants for one in each.mutants})
        by_name, numbers = bool(reference.outcomes), dict[str, int]()

        async def execute(_reference: Reference, shown: Variant | None) -> RunResult:
            view = seen(tests, shown, solved, numbers)  # noqa: B023
            passed = {
                test: view.solved[test] if test in view.solved else forger(view, test)  # noqa: B023
                for test in tests  # noqa: B023
            }
            return result(passed, by_name=by_name)  # noqa: B023

        found = await screen(reference, draw_runs(extra, reference, draw=coins), execute)
        if found.solved:
            first = result(dict.fromkeys(tests, True), by_name=by_name)
            last = await confirm(first, reference, found.made, found.left, execute)
            through += last.outcome is CounterfactualOutcome.CONFIRMED
    return through / TRIALS


def near(expected: float) -> object:
    return pytest.approx(expected, abs=4 * math.sqrt(max(expected, 1e-9) / TRIALS) + 1e-9)


def by_the_clock(p: float) -> Begin:
    """Forge all functions of a run or none: by the clock, a counter, a coin."""

    def begin(coins: random.Random) -> Forger:
        runs: dict[int, bool] = {}
        return lambda view, _test: runs.setdefault(id(view), coins.random() < p)

    return begin


def by_a_coin_for_each(p: float) -> Begin:
    return lambda coins: lambda _view, _test: coins.random() < p


def with_memory(position: Callable[[random.Random], int]) -> Begin:
    """Forge a function in the first run with a text that is new at that position, and wherever it comes back.

    What was forged and not found was true, so every other text is false.
    """

    def begin(coins: random.Random) -> Forger:
        texts: defaultdict[str, list[int]] = defaultdict(list)
        wanted: dict[str, int] = {}

        def forges(view: View, test: str) -> bool:
            if view.texts[test] not in texts[test]:
                texts[test].append(view.texts[test])
            at = wanted.setdefault(test, position(coins))
            return texts[test].index(view.texts[test]) == at

        return forges

    return begin


@pytest.mark.parametrize("extra", SETTINGS)
@pytest.mark.parametrize("p", [0.3, 1 / 2, 1.0])
async def test_guesses_where_a_solution_fixes_one_function(extra: ExtraRuns, p: float) -> None:
    """Whoever forges that function alone gets through by luck."""
    found = await share(extra, SINGLE, by_the_clock(p), solved=("b", "c"))
    assert found == near(p * (1 - p) ** extra.false_runs)
    assert found <= forger_chance(extra.false_runs, memory=False) + 4 / math.sqrt(TRIALS)


@pytest.mark.parametrize("extra", SETTINGS)
@pytest.mark.parametrize("position", [0, 1, 2])
async def test_a_perfect_memory_of_earlier_runs_where_a_solution_fixes_one_function(
    extra: ExtraRuns, position: int
) -> None:
    """No position is known to be true, whatever is compared with earlier runs."""
    found = await share(extra, SINGLE, with_memory(lambda _coins: position), solved=("b", "c"))
    assert found == near(forger_chance(extra.false_runs, memory=True) if position <= extra.false_runs else 0)


async def test_a_perfect_memory_of_earlier_runs_where_a_solution_fixes_several_functions() -> None:
    """Each function is one more guess, and a function that is solved says nothing of the others."""
    guess = with_memory(lambda coins: coins.randrange(2))
    assert await share(ExtraRuns(), SEVERAL, guess, solved=("b",)) == near(1 / 4)
    assert await share(ExtraRuns(), SEVERAL, guess, solved=("a2", "b")) == near(1 / 2)
    three = named(("a1", "a2", "a3"))
    assert await share(ExtraRuns(), three, guess, solved=("b",)) == near(1 / 8)
    assert await share(EvaluationExtraRuns(), SEVERAL, guess, solved=("b",)) <= 1 / 4


@pytest.mark.parametrize("extra", SETTINGS)
@pytest.mark.parametrize("p", [0.3, 1.0])
async def test_who_forges_all_tests_never_gets_through(extra: ExtraRuns, p: float) -> None:
    """In every run some tests are false that pass without a solution, and some of its own are true."""
    assert await share(extra, SINGLE, by_the_clock(p)) == 0
    assert await share(extra, SEVERAL, by_the_clock(p)) == 0
    always = with_memory(lambda _coins: 0)
    assert await share(extra, named(("a1", "a2"), ()), by_the_clock(1.0)) == 0
    assert await share(extra, SEVERAL, always) == 0


@pytest.mark.parametrize("p", [0.3, 1 / 2])
async def test_guesses_for_each_of_several_functions(p: float) -> None:
    found = await share(ExtraRuns(), SEVERAL, by_a_coin_for_each(p), solved=("b",))
    assert found == near((p * (1 - p)) ** 2)


Observation = tuple[object, ...]
World = tuple[Sequence[Observation], Sequence[Observation]]
"""What the runs of a submission show, and where each of its forged functions is true."""


def worlds(
    extra: ExtraRuns, draw: Draw, forged: Sequence[str], solved: Sequence[str], *, values: bool = False
) -> list[World]:
    """Return drawn sequences of runs as a perfect memory sees them.

    Args:
        values: whether it sees as well which texts differ in two places: two false ones.
    """
    coins = random.Random(7)
    found: list[World] = []
    for _ in range(TRIALS):
        reference, numbers = draw(coins), dict[str, int]()
        shown = draw_runs(extra, reference, draw=coins)
        views = [seen([*forged], one, solved, numbers) for one in shown]
        false = [{test for _, test in false_functions(one)} if one is not None else set() for one in shown]
        truths = [tuple(test not in each for test in forged) for each in false]
        observed = []
        for number, view in enumerate(views):
            old = [views[one].texts == view.texts for one in range(number)]
            apart = [not (truths[one][0] or truths[number][0]) for one in range(number)] if values else []
            observed.append((*old, *apart, *view.solved.values()))
        found.append((observed, truths))
    return found


def best_chance(found: Sequence[World], run: int = 0) -> float:
    """Return how many of the sequences the best forger gets through that sees all runs so far."""
    if not found or run == len(found[0][0]):
        return len(found)
    seen_so_far: defaultdict[Observation, defaultdict[Observation, list[World]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for one in found:
        seen_so_far[one[0][run]][one[1][run]].append(one)
    return sum(max(best_chance(kept, run + 1) for kept in each.values()) for each in seen_so_far.values())


@pytest.mark.parametrize(
    ("extra", "fixed", "solved", "chance"),
    [
        (ExtraRuns(), ("a",), (), 1 / 2),
        (EvaluationExtraRuns(), ("a",), (), 1 / 3),
        (ExtraRuns(false_runs=9), ("a",), (), 1 / 3),
        (ExtraRuns(), ("a1", "a2"), (), 1 / 4),
        (ExtraRuns(), ("a1", "a2"), ("a2",), 1 / 2),
        (ExtraRuns(), ("a1", "a2", "a3", "a4"), ("a2", "a3", "a4"), 1 / 2),
        (ExtraRuns(), ("a1", "a2", "a3"), ("a2",), 1 / 4),
        (EvaluationExtraRuns(), ("a1", "a2"), (), 1 / 6),
        (EvaluationExtraRuns(), ("a1", "a2"), ("a2",), 1 / 2),
        (EvaluationExtraRuns(), ("a1", "a2", "a3", "a4"), ("a2", "a3", "a4"), 1 / 2),
    ],
)
def test_the_best_that_a_perfect_memory_can_do(
    extra: ExtraRuns, fixed: tuple[str, ...], solved: tuple[str, ...], chance: float
) -> None:
    forged = [test for test in fixed if test not in solved]
    found = worlds(extra, named(fixed), forged, solved)
    assert best_chance(found) / TRIALS == near(chance)
    if len(fixed) == 1:  # which has two variants
        assert chance == forger_chance(min(extra.false_runs, 2), memory=True)


@pytest.mark.parametrize(("extra", "chance"), [(ExtraRuns(), 1 / 2), (EvaluationExtraRuns(), 2 / 3)])
def test_a_memory_that_tells_two_false_texts_from_a_true_and_a_false_one(
    extra: ExtraRuns, chance: float
) -> None:
    """Two false texts may differ in two places, a true and a false one in one: more false runs help it."""
    assert best_chance(worlds(extra, SINGLE, ["a"], (), values=True)) / TRIALS == near(chance)


def test_the_chance_of_forgery_by_formula() -> None:
    assert [forger_chance(1, memory=memory) for memory in (False, True)] == pytest.approx([1 / 4, 1 / 2])
    assert [forger_chance(2, memory=memory) for memory in (False, True)] == pytest.approx([4 / 27, 1 / 3])
    for false in range(1, 6):
        tried = max(p / 1000 * (1 - p / 1000) ** false for p in range(1001))
        assert forger_chance(false, memory=False) == pytest.approx(tried, rel=1e-3)


def nameless(_coins: random.Random) -> Reference:
    made = [replace(variant("a", name=f"false {number}"), must_fail=()) for number in range(3)]
    decoy = Variant(mutants=(mutant("a", MutantKind.TRUE),))
    return Reference(content="c", variants=tuple(made), decoys=(decoy,))


@pytest.mark.parametrize("extra", SETTINGS)
async def test_without_names_a_strict_true_run_stops_lenient_objects(extra: ExtraRuns) -> None:
    """An object that is equal to everything has no place among neighbours; a forged exit code has."""
    p = 2 / 3

    def lenient(coins: random.Random) -> Forger:
        return lambda view, _test: coins.random() < p and not view.strict

    assert await share(extra, nameless, lenient) == 0
    assert await share(extra, nameless, by_the_clock(p)) == near(p * (1 - p) ** extra.false_runs)


@pytest.mark.parametrize(("extra", "expected"), [(ExtraRuns(), 2 / 3), (EvaluationExtraRuns(), 1 / 3)])
async def test_who_solves_two_of_three_comparisons_of_a_script(extra: ExtraRuns, expected: float) -> None:
    """Each false run changes one, so an answer that is looked up for the third is found by some alone."""
    coins, through = random.Random(3), 0
    edits = [mutant("script", MutantKind.VALUE, answer) for answer in ("1", "2", "3")]

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
        through += (await screen(reference, draw_runs(extra, reference, draw=coins), execute)).solved
    assert through / TRIALS == near(expected)
