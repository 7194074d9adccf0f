"""Extra runs of the tests, true and false, after a first run that a submission passed.

From inside, a true and a false one of them cannot be told apart without solving the task: both have the same
words, and some false tests that pass without a solution. So a submission that forges the results of a
function forges them with the same probability p in each. The first run may be known, by its words or the
clock, and is forged for certain. It gets through with p^(true runs) · (1 - p)^(false runs): ``forger_chance``
is the highest value of that.

In a true run a half of the functions that need a solution is false, where there are several. Who forges all
passes those as well, and who forges none fails the true ones: both are found whatever else they know. The
true ones are strict, so that objects which are equal to more than one value fail them.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from engine.config.rollout import ExtraRuns
from engine.grading.counterfactual.base import MutantKind, Reference, Variant
from engine.grading.counterfactual.selection import tests_by_function
from engine.grading.evidence import named
from engine.grading.execution import RunResult
from engine.grading.rules.reward_file import reward_of
from engine.types import CounterfactualOutcome, FindingKind, TamperFinding, TestOutcome, Verdict

Execute = Callable[[Reference, Variant | None], Awaitable[RunResult]]
"""Runs the tests of a variant once, or the true ones."""
_PASSED = frozenset({TestOutcome.PASSED, TestOutcome.XPASS})
_MAX_FINDINGS = 5
_SCORE_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """Result of the extra runs."""

    outcome: CounterfactualOutcome
    runs: int
    """Number of extra runs that came to their end."""
    deciding: RunResult | None = None
    """The run that did not end as it must; None when all did."""
    variant: bool = False
    """Whether the deciding run had false tests."""
    lost: tuple[str, ...] = ()
    """Tests that passed at first and not in the deciding run, although it left them true."""
    detail: str = ""
    """Description of how the deciding run ended; it holds no assertion."""
    findings: tuple[TamperFinding, ...] = ()


def forger_chance(true_runs: int, false_runs: int) -> float:
    """Return the highest probability with which blind forgery gets through the first and the extra runs.

    Args:
        true_runs, false_runs: number of extra runs of each kind; the first is known to be true.
    """
    passes, fails = true_runs, false_runs
    best = passes / (passes + fails)
    return float(best**passes * (1 - best) ** fails)


def draw_runs(
    extra: ExtraRuns, reference: Reference, *, draw: random.Random | None = None
) -> list[Variant | None]:
    """Return the extra runs in random order: a variant for a false run, a decoy or None for a true one.

    False runs are quiet as far as there are such variants, else those with changed assertions: they catch
    whoever an added assertion catches, and values made to fit. The others are drawn from all variants that
    are left. Two true runs have different decoys, which together leave every function true.

    Args:
        draw: source of randomness; None for the operating system's, which no seed of a run predicts.
    """
    draw = draw or secrets.SystemRandom()
    variants = reference.variants
    quiet = [one for one in variants if one.quiet]
    changed = [one for one in variants if any(it.kind is MutantKind.CHANGED for it in one.mutants)]
    first = quiet or changed or variants
    others = [one for one in variants if one not in first]
    false: list[Variant] = []
    while len(false) < extra.false_runs:
        drawn = [*draw.sample(first, len(first)), *draw.sample(others, len(others))]
        false += drawn[: extra.false_runs - len(false)]
    true: list[Variant | None] = []
    while len(true) < extra.true_runs:
        decoys: list[Variant | None] = [*draw.sample(reference.decoys, len(reference.decoys))] or [None]
        true += decoys[: extra.true_runs - len(true)]
    runs = [*false, *true]
    draw.shuffle(runs)
    return runs


async def confirm(
    first: RunResult, reference: Reference, runs: Sequence[Variant | None], execute: Execute
) -> Confirmation:
    """Make the extra runs of a submission that passed; the first that does not end as it must decides.

    They are begun in the given order, at once as far as ``execute`` lets them.

    Args:
        first: the first true run.
        runs: see ``draw_runs``.

    Raises:
        SandboxError: infrastructure failed in every attempt at a run.
    """

    async def make(variant: Variant | None) -> tuple[Variant | None, RunResult]:
        return variant, await execute(reference, variant)

    begun = [asyncio.create_task(make(variant)) for variant in runs]
    try:
        for number, made in enumerate(asyncio.as_completed(begun), start=1):
            variant, run = await made
            if variant is None or variant.true:
                found = _after_repetition(first, run, number)
            else:
                found = _after_variant(first, reference, variant, run, number)
            if found is not None:
                return found
    finally:
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)
    return Confirmation(outcome=CounterfactualOutcome.CONFIRMED, runs=len(runs))


def _after_repetition(first: RunResult, run: RunResult, number: int) -> Confirmation | None:
    """Return what a run of the unchanged tests decides; None where it ended as the first did."""
    if run.verdict is Verdict.TAMPERED:
        return _tampered(number, run, run.detail, ())
    if run.score >= first.score - _SCORE_TOLERANCE:
        return None
    return _flaky(number, run, f"the same tests passed at first, then ended with {_ending(run)}")


def _after_variant(
    first: RunResult, reference: Reference, variant: Variant, run: RunResult, number: int
) -> Confirmation | None:
    """Return what a run with false tests decides; None where it ended as one of a solution."""
    if run.verdict is Verdict.TAMPERED:
        return _tampered(number, run, run.detail, ())
    if problem := forgery(variant, run, first):
        return _tampered(number, run, problem, tuple(_findings(variant, run)))
    lost = tuple(lost_tests(first, reference, variant, run))
    if run.verdict is not Verdict.FAILED:
        how = f"the tests ran to their end at first, then ended with {_ending(run)}"
    elif lost:
        how = f"{len(lost)} tests passed at first, then not: {named(lost)}"
    elif first.verdict is not Verdict.PASSED and _disbelieved(run) >= first.score - _SCORE_TOLERANCE:
        how = f"the verifier wrote {first.score:g} again, which is not believed: {run.detail}"
    else:
        return None
    return replace(_flaky(number, run, how), variant=True, lost=lost)


def _disbelieved(run: RunResult) -> float:
    """Return the reward that the verifier wrote and the rule did not take; 0 where it took it."""
    rewards = run.evidence.rewards
    return reward_of(rewards) if rewards and run.judgement.reward is None else 0.0


def _ending(run: RunResult) -> str:
    return f"{run.verdict}: {run.detail}" if run.detail else str(run.verdict)


def _tampered(number: int, run: RunResult, detail: str, findings: tuple[TamperFinding, ...]) -> Confirmation:
    return Confirmation(
        outcome=CounterfactualOutcome.CAUGHT, runs=number, deciding=run, detail=detail, findings=findings
    )


def _flaky(number: int, run: RunResult, how: str) -> Confirmation:
    return Confirmation(
        outcome=CounterfactualOutcome.FLAKY, runs=number, deciding=run, detail=f"flaky: {how}"
    )


def lost_tests(first: RunResult, reference: Reference, variant: Variant, run: RunResult) -> list[str]:
    """Return the tests that passed in the first run, but not in one that leaves them true.

    Only those count that passed in the proof of the variant, too.
    """
    excluded = {*variant.must_fail, *variant.doubtful}
    known = {test for test, outcome in reference.outcomes.items() if outcome in _PASSED} - excluded
    names = dict(variant.renamed)
    passed = _passed(run)
    return [test for test in _passed(first) if test in known and names.get(test, test) not in passed]


def forgery(variant: Variant, run: RunResult, first: RunResult) -> str:
    """Return the sign of forgery in a false run; empty when it ended as it must.

    Every solution of the true tests fails those of ``must_fail``. One that is better than the gold patch may
    get more than the score of the proof, but less than in its own true run. A wrong answer may be what a
    false test wants: of a submission that got a part of the reward only the tests count that it passed, and
    a reward above that of the gold patch where it passes no test that the gold patch fails.

    Args:
        first: the submission's first, true run.
    """
    partial = first.verdict is not Verdict.PASSED and bool(variant.must_fail)
    if run.verdict is Verdict.PASSED and not partial:
        return "it passed the tests also after they were made false"
    passed = _false_passes(variant, run)
    if partial:
        names = dict(variant.renamed)
        solved = {names.get(test, test) for test in _passed(first)}
        passed = [test for test in passed if test in solved]
    if passed:
        return f"{len(passed)} tests passed although they were made false: {named(passed)}"
    comparable = run.score >= first.score - _SCORE_TOLERANCE
    if partial:
        comparable = not _passed_of(variant, run, [*variant.must_fail, *variant.doubtful])
    if comparable and run.score > variant.score + _SCORE_TOLERANCE:
        return f"false tests gave a reward of {run.score:g}, of {variant.score:g} that any solution can get"
    return ""


def _false_passes(variant: Variant, run: RunResult) -> list[str]:
    return _passed_of(variant, run, variant.must_fail)


def _passed_of(variant: Variant, run: RunResult, tests: Iterable[str]) -> list[str]:
    """Return the tests that passed in a false run, out of those given by their true names."""
    names = dict(variant.renamed)
    wanted = {names.get(test, test) for test in tests}
    return [test for test in _passed(run) if test in wanted]


def _passed(run: RunResult) -> dict[str, None]:
    """Return the tests of a run that passed, in their order."""
    return {test.test_id: None for test in run.judgement.tests if test.outcome in _PASSED}


def _findings(variant: Variant, run: RunResult) -> Iterator[TamperFinding]:
    """Yield the mutated assertions of tests that passed; all where the rule knows no tests by name."""
    passed = _false_passes(variant, run)
    known = tests_by_function({(mutant.path, mutant.function) for mutant in variant.mutants}, passed)
    mutants = [mutant for mutant in variant.mutants if (mutant.path, mutant.function) in known]
    for mutant in (mutants or variant.mutants)[:_MAX_FINDINGS]:
        true = f", true: {mutant.before}" if mutant.before else ", added"
        detail = f"{mutant.path}:{mutant.line} {mutant.function} passed with: {mutant.after}{true}"
        yield TamperFinding(kind=FindingKind.COUNTERFACTUAL, detail=detail)
