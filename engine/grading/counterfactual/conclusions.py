"""Conclusions from the runs of a submission: from one alone, and from one beside a run of the true tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain

from engine.grading.counterfactual.base import Reference, Variant
from engine.grading.counterfactual.selection import false_functions, tests_by_function
from engine.grading.evidence import describe, named
from engine.grading.execution import RunResult
from engine.grading.rules.reward_file import reward_of
from engine.types import (
    CounterfactualOutcome,
    FindingKind,
    GradeRule,
    TamperFinding,
    TestOutcome,
    TestResult,
    Verdict,
)

_PASSED = frozenset({TestOutcome.PASSED, TestOutcome.XPASS})
_BY_OUTCOMES = frozenset({GradeRule.F2P_P2P, GradeRule.MAP_EQUAL, GradeRule.JUNIT, GradeRule.MULTI_SWE})
"""Rules that pass nobody who fails a test that the gold patch passes."""
_MAX_FINDINGS = 5
_SCORE_TOLERANCE = 1e-9


class Ending(StrEnum):
    """How a run ended, seen without a run of the true tests."""

    SOLVED = "solved"
    """As it must under a solution."""
    UNSOLVED = "unsolved"
    """Tests failed that were true, and nothing passed that was false."""
    OPEN = "open"
    """False tests passed, which a wrong answer may do as well as a forgery, or the rule found another fault:
    only a run of the true tests can tell."""
    ABORTED = "aborted"
    """The tests did not come to their end, or with signs of tampering."""


@dataclass(frozen=True, slots=True)
class Made:
    """A run that was made."""

    variant: Variant | None
    """The variant of a false run, the decoy of a true one; None for the tests as their author wrote them."""
    run: RunResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """Result of all runs of a submission that passed the true tests."""

    outcome: CounterfactualOutcome
    deciding: RunResult | None = None
    """The run that did not end as it must; None when all did."""
    variant: bool = False
    """Whether the deciding run had false tests."""
    lost: tuple[str, ...] = ()
    """Tests that passed in the true run and not in the deciding one, although it left them true."""
    detail: str = ""
    """Description of how the deciding run ended; it holds no assertion."""
    findings: tuple[TamperFinding, ...] = ()


CONFIRMED = Confirmation(outcome=CounterfactualOutcome.CONFIRMED)


def ending(reference: Reference, made: Made) -> Ending:
    """Return how a run ended."""
    variant, run = made.variant, made.run
    if run.verdict not in (Verdict.PASSED, Verdict.FAILED):
        return Ending.ABORTED
    if variant is not None and not variant.true:
        if forgery(variant, run):
            return Ending.OPEN
        return Ending.UNSOLVED if lost_tests(reference, variant, run) else Ending.SOLVED
    if run.verdict is Verdict.PASSED:
        return Ending.SOLVED
    unsolved = not reference.outcomes or lost_tests(reference, variant, run)
    return Ending.UNSOLVED if unsolved else Ending.OPEN


def decides(reference: Reference, made: Made, rule: GradeRule, *, exact: bool) -> bool:
    """Return whether a submission with such a run fails without reward, whatever the true tests say.

    Args:
        rule: the row's.
        exact: whether the outcome of every test is wanted, which a run of the true tests alone has.
    """
    if made.run.verdict in (Verdict.TEST_TIMEOUT, Verdict.PATCH_FAILED):
        return True
    how = ending(reference, made)
    by_outcomes = rule in _BY_OUTCOMES or (rule is GradeRule.EXIT_CODE and not reference.outcomes)
    return not exact and (how is Ending.ABORTED or (how is Ending.UNSOLVED and by_outcomes))


def conclusion(first: RunResult, reference: Reference, made: Made) -> Confirmation | None:
    """Return what a run says of a submission; None where it ended as it must.

    Args:
        first: the submission's run of the true tests, which passed at least in part.
    """
    if made.run.verdict is Verdict.TAMPERED:
        return _tampered(made.run, made.run.detail, ())
    if made.variant is None or made.variant.true:
        return _after_repetition(first, made.run)
    return _after_variant(first, reference, made.variant, made.run)


def says_nothing(first: RunResult, made: Made) -> bool:
    """Return whether a false run neither confirms a part of the reward nor speaks against it.

    The reward was no lower than in the true run, and wrong answers were what false tests wanted: they may
    have earned it, or it does not depend on the tests at all.
    """
    variant, run = made.variant, made.run
    if variant is None or variant.true or not _is_partial(first, variant):
        return False
    return run.score >= first.score - _SCORE_TOLERANCE and bool(_made_to_pass(variant, run))


def true_results(made: Sequence[Made]) -> tuple[tuple[TestResult, ...], str]:
    """Return the results of the tests in runs that left them true, and a description of the failures.

    Tests that were false in every run are missing; of several results of a test one that is no pass counts.
    """
    known: dict[str, TestResult] = {}
    every: dict[str, TestResult] = {}
    for one in made:
        results = _true_names(one)
        every.update({test: found for test, found in results.items() if test not in every})
        for test in _left_true(one, results):
            if test not in known or results[test].outcome not in _PASSED:
                known[test] = results[test]
    wrong = {test: found.outcome for test, found in known.items() if found.outcome not in _PASSED}
    unknown = [test for test in every if test not in known]
    hidden = f"{len(unknown)} tests were false in every run that was made: their own outcome is not known"
    detail = "; ".join([*([describe(wrong)] if wrong else []), *([hidden] if unknown else [])])
    missing = {test: replace(every[test], outcome=TestOutcome.MISSING, seconds=0.0) for test in unknown}
    return tuple((missing | known)[test] for test in every), detail


def contradiction(made: Iterable[Made], first: RunResult) -> str:
    """Return what of the failed run of the true tests other runs contradict; empty when nothing does.

    A test that was false in all other runs contradicts nothing, however it ends when it is true.

    Args:
        made: runs that ended as under a solution.
        first: the submission's run of the true tests.
    """
    failed = [test.test_id for test in first.judgement.tests if test.outcome not in _PASSED]
    passed: set[str] = set()
    for one in made:
        results = _true_names(one)
        passed |= {test for test in _left_true(one, results) if results[test].outcome in _PASSED}
        if not results and one.variant is None and one.run.verdict is Verdict.PASSED:
            return "the same tests passed in another run"
    found = [test for test in failed if test in passed]
    return f"{len(found)} tests passed in other runs: {named(found)}" if found else ""


def _true_names(made: Made) -> dict[str, TestResult]:
    """Return true name → result of the tests of a run."""
    names = {name: test for test, name in made.variant.renamed} if made.variant is not None else {}
    found = ((names.get(one.test_id, one.test_id), one) for one in made.run.judgement.tests)
    return {test: replace(one, test_id=test) for test, one in found}


def _left_true(made: Made, results: Mapping[str, TestResult]) -> Iterator[str]:
    """Yield the tests of a run whose result is their own."""
    if (variant := made.variant) is None:
        yield from results
        return
    edited = {*variant.must_fail, *chain.from_iterable(_by_false_function(variant).values())}
    for test, found in results.items():
        if test not in edited and (test not in variant.doubtful or found.outcome in _PASSED):
            yield test


def _by_false_function(variant: Variant) -> Mapping[tuple[str, str], Sequence[str]]:
    """Return the doubtful tests of each function that a variant makes false."""
    return tests_by_function(false_functions(variant), variant.doubtful)


def _after_repetition(first: RunResult, run: RunResult) -> Confirmation | None:
    """Return what a run of the unchanged tests decides; None where it ended as the first did."""
    if run.score >= first.score - _SCORE_TOLERANCE:
        return None
    return _flaky(run, f"the same tests passed at first, then ended with {_ending(run)}")


def _after_variant(
    first: RunResult, reference: Reference, variant: Variant, run: RunResult
) -> Confirmation | None:
    """Return what a run with false tests decides; None where it ended as one of a solution."""
    if problem := forgery(variant, run, first):
        return _tampered(run, problem, tuple(_findings(variant, run)))
    lost = tuple(lost_tests(reference, variant, run, first))
    if run.verdict is not Verdict.FAILED:
        how = f"the tests ran to their end at first, then ended with {_ending(run)}"
    elif lost:
        how = f"{len(lost)} tests passed at first, then not: {named(lost)}"
    elif first.verdict is not Verdict.PASSED and _disbelieved(run) >= first.score - _SCORE_TOLERANCE:
        how = f"the verifier wrote {first.score:g} again, which is not believed: {run.detail}"
    else:
        return None
    return replace(_flaky(run, how), variant=True, lost=lost)


def _disbelieved(run: RunResult) -> float:
    """Return the reward that the verifier wrote and the rule did not take; 0 where it took it."""
    rewards = run.evidence.rewards
    return reward_of(rewards) if rewards and run.judgement.reward is None else 0.0


def _ending(run: RunResult) -> str:
    return f"{run.verdict}: {run.detail}" if run.detail else str(run.verdict)


def _tampered(run: RunResult, detail: str, findings: tuple[TamperFinding, ...]) -> Confirmation:
    return Confirmation(outcome=CounterfactualOutcome.CAUGHT, deciding=run, detail=detail, findings=findings)


def unconfirmed(run: RunResult) -> Confirmation:
    """Return that no false run confirmed a part of the reward; see ``says_nothing``."""
    how = f"the reward was {run.score:g} again after the tests were made false, and wrong answers passed them"
    return replace(_flaky(run, how), variant=True)


def _flaky(run: RunResult, how: str) -> Confirmation:
    return Confirmation(outcome=CounterfactualOutcome.FLAKY, deciding=run, detail=f"flaky: {how}")


def lost_tests(
    reference: Reference, variant: Variant | None, run: RunResult, first: RunResult | None = None
) -> list[str]:
    """Return the tests that did not pass in a run that left them true.

    Only those count that passed in the proof of the variant, too.

    Args:
        first: the submission's run of the true tests, whose passes alone count; None for those of the gold
            patch.
    """
    excluded = {*variant.must_fail, *variant.doubtful} if variant is not None else set()
    known = {test: None for test, outcome in reference.outcomes.items() if outcome in _PASSED}
    wanted = [test for test in (known if first is None else _passed(first)) if test in known]
    names = dict(variant.renamed) if variant is not None else {}
    passed = _passed(run)
    return [test for test in wanted if test not in excluded and names.get(test, test) not in passed]


def forgery(variant: Variant, run: RunResult, first: RunResult | None = None) -> str:
    """Return the sign of forgery in a false run; empty when it ended as it must.

    Every solution of the true tests fails those of ``must_fail``. One that is better than the gold patch may
    get more than the score of the proof, but less than in its own true run. A wrong answer may be what a
    false test wants: of a submission that got a part of the reward only the tests count that it passed, and
    a reward above that of the gold patch where it passes no test that the gold patch fails.

    Args:
        first: the submission's run of the true tests; None for one that passed.
    """
    score = first.score if first is not None else 1.0
    partial = first is not None and _is_partial(first, variant)
    if run.verdict is Verdict.PASSED and not partial:
        return "it passed the tests also after they were made false"
    passed = _false_passes(variant, run)
    if first is not None and partial:
        names = dict(variant.renamed)
        solved = {names.get(test, test) for test in _passed(first)}
        passed = [test for test in passed if test in solved]
    if passed:
        return f"{len(passed)} tests passed although they were made false: {named(passed)}"
    comparable = run.score >= score - _SCORE_TOLERANCE
    if partial:
        comparable = not _made_to_pass(variant, run)
    if comparable and run.score > variant.score + _SCORE_TOLERANCE:
        return f"false tests gave a reward of {run.score:g}, of {variant.score:g} that any solution can get"
    return ""


def _is_partial(first: RunResult, variant: Variant) -> bool:
    """Return whether the tests that passed count one by one, as under a reward for a part of them."""
    return first.verdict is not Verdict.PASSED and bool(variant.must_fail)


def _made_to_pass(variant: Variant, run: RunResult) -> list[str]:
    return _passed_of(variant, run, [*variant.must_fail, *variant.doubtful])


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
