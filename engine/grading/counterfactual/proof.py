"""Proof of false tests: a row's reference, from runs of its gold patch.

true run ── test files ── mutants ── variants ── a false run of each ── mutants that failed
"""

from __future__ import annotations

import asyncio
import random
import re
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from engine.datasets.health import row_content
from engine.errors import DatasetError
from engine.events.health import MutantCoverage
from engine.grading.counterfactual.base import QUIET, SCRIPT, Mutant, MutantKind, Reference, Variant
from engine.grading.counterfactual.selection import (
    Choice,
    Function,
    choose,
    decoy_choices,
    kinds_by_test,
    mutants_by_function,
    one_function_each,
    only_quiet,
    other_choice,
    quiet_choice,
    tests_by_function,
    true_beside,
)
from engine.grading.counterfactual.stops import Stop, at_stops, of_whole_tables
from engine.grading.counterfactual.visibility import VisibleLines
from engine.grading.evidence import required
from engine.grading.execution import RunResult
from engine.types import TaskRow, TestOutcome, TestResult, Verdict

Execute = Callable[[Reference, Variant], Awaitable[RunResult]]
"""Runs the tests of a variant once under the gold patch."""
_WITH_QUIET = (MutantKind.NEAR, MutantKind.NEAR, MutantKind.CHANGED)
_LOUD = (MutantKind.CHANGED, MutantKind.ADDED, MutantKind.CHANGED)
"""Kind of the mutants of each variant, for rows with quiet ones and for others."""
_MAX_PASS_TO_PASS = 20
_MAX_ATTEMPTS = 3
_SKIPS = re.compile(rb"(?i)skip|\bassum(?:e|ing)|abled(?:if|on|for)")
"""Words by which tests of any language are left out under a condition."""
_NOT_RUN = frozenset({TestOutcome.MISSING, TestOutcome.ERROR})


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfixed:
    """Tests that fail without a solution, and the lines at which they stop."""

    failing: frozenset[str] = frozenset()
    """Tests that fail; where the rule knows no tests by name, names that its runner printed."""
    stops: Mapping[Stop, Collection[int]] = field(default_factory=dict)
    """Lines of test files at which they stop → rows of the table of the loop there, where they are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """A row with what is known of it before its false runs."""

    row: TaskRow
    files: Mapping[str, bytes]
    choices: Sequence[tuple[MutantKind, Choice]]
    """Kind and choice of mutants of each variant."""
    otherwise: Sequence[tuple[MutantKind, Choice]]
    """Those that are tried where none of the variants can be proven."""
    halves: Sequence[Choice]
    """Functions that only a solution passes and that are false in each decoy."""
    others: Choice
    """Functions that pass without a solution and are false in every quiet variant and decoy."""
    true: Choice
    """Functions that only a solution passes, with all of their true mutants; all functions where the rule
    knows no tests by name."""
    tests: Mapping[Function, Sequence[str]]
    """Required tests of each function with mutants; empty where the rule knows no tests by name."""
    outcomes: Mapping[str, TestOutcome]
    """Outcome of every required test in the true run."""
    fixed: frozenset[str]
    draw: random.Random


async def prove(
    row: TaskRow,
    true_run: RunResult,
    files: Mapping[str, bytes],
    execute: Execute,
    *,
    unfixed: Unfixed,
) -> Reference:
    """Return the reference of a row, with up to three proven variants and two decoys.

    Args:
        true_run: a run of the true tests under the gold patch.
        files: true contents of the test files in it.
        execute: makes a false run under the gold patch.
        unfixed: what a run without a solution showed.

    Raises:
        DatasetError: the row does not pass with its gold patch.
        SandboxError: infrastructure failed.
    """
    signs = set(true_run.signs)

    async def noted(reference: Reference, variant: Variant) -> RunResult:
        run = await execute(reference, variant)
        signs.update(run.signs)
        return run

    if true_run.verdict is not Verdict.PASSED:
        raise DatasetError(
            f"the row does not pass with its gold patch: {true_run.detail or true_run.verdict}"
        )
    subject = await asyncio.to_thread(_subject, row, true_run, files, unfixed)
    used: set[Mutant] = set()

    async def proven(kind: MutantKind, choice: Choice, true: Choice) -> list[Variant]:
        chosen = choose(choice, kind, used, subject.draw)
        used.update(chosen)
        variant = await _proven(subject, [*chosen, *true_beside(chosen, true)], noted)
        return [variant] if variant is not None else []

    async def proven_decoys(halves: Sequence[Choice]) -> list[Variant]:
        return [
            one
            for half in halves
            for one in await proven(MutantKind.NEAR, {**subject.others, **half}, subject.true)
            if one.true or not {*one.must_fail, *one.doubtful}.issuperset(subject.fixed)
        ]

    decoys = await proven_decoys(subject.halves)
    if len(decoys) < len(subject.halves):  # then some functions would be true in no run
        decoys = await proven_decoys([{}])
    shown = {mutant for decoy in decoys for mutant in decoy.mutants}
    true = {function: [one for one in found if one in shown] for function, found in subject.true.items()}
    refused = [one for found in subject.true.values() for one in found if one not in shown]
    variants: list[Variant] = []
    for choices in (subject.choices, subject.otherwise):
        for kind, choice in choices if not variants else ():
            beside = true if kind in QUIET else {}
            variants += await proven(kind, _without_near(choice, refused), beside)
    decoys = decoys if variants else []
    return replace(_reference(subject, variants, decoys), signs=tuple(sorted(signs)))


def _without_near(choice: Choice, refused: Sequence[Mutant]) -> Choice:
    """Return a choice without the words of true mutants that no true run shows: the gold patch fails them."""

    def is_alone(one: Mutant) -> bool:
        return one.kind is MutantKind.NEAR and any(one.touches(other) for other in refused)

    return {
        function: [one for one in found if not is_alone(one)] or found for function, found in choice.items()
    }


def coverage_of(row: TaskRow, reference: Reference) -> MutantCoverage:
    """Return the numbers of the row's tests that can be made false."""
    kinds = Counter(reference.coverage.values())
    covered = sum(kinds.values())
    tests = set(reference.outcomes) | {test for test, _ in required(row.answer)} | set(row.answer.expected)
    named = any(variant.must_fail for variant in reference.variants)
    return MutantCoverage(
        value=kinds[MutantKind.VALUE],
        changed=kinds[MutantKind.CHANGED],
        added=kinds[MutantKind.ADDED],
        none=len(tests) - covered if named or not covered else 0,
        variants=len(reference.variants),
        note=reference.note,
    )


def _subject(row: TaskRow, true_run: RunResult, files: Mapping[str, bytes], unfixed: Unfixed) -> _Subject:
    draw, fixed = secrets.SystemRandom(), unfixed.failing
    results = true_run.judgement.tests
    wanted = _wanted(results, fixed, draw)
    # Without names nobody notices that a solution skips a false test.
    known = files if results else {path: text for path, text in files.items() if not _SKIPS.search(text)}
    mutants, true = mutants_by_function(known, wanted) if wanted or not results else ({}, {})
    if results:
        mutants = {function: mutants[function] for function in tests_by_function(mutants, wanted)}
    tests = tests_by_function(mutants, [test.test_id for test in results] or sorted(fixed))
    mended = {function for function, own in tests.items() if fixed.intersection(own)}
    # The comparisons of a verifier count as one function of each file.
    deciding = {one for one in mutants if not results and (one in mended or one[1] == SCRIPT)}
    every = {function: of_whole_tables(own) for function, own in mutants.items()}
    mutants = every | at_stops({one: mutants[one] for one in mended | deciding}, unfixed.stops)
    visible = VisibleLines(row)

    def is_visible(mutant: Mutant) -> bool:
        return visible.changed_by(mutant, files[mutant.path])

    # Without names nobody knows what a run with false tests left true.
    named = mended if results else set()
    quiet = quiet_choice(mutants, named, is_visible)
    own = quiet or {function: mutants[function] for function in mutants if function in named}

    others = other_choice(mutants, named, is_visible, draw) if named else {}
    strict = named if results else {*true}
    choices = _by_kind(quiet, others, mutants)
    alone = one_function_each(_by_kind(only_quiet(mutants, deciding), {}, mutants), deciding, draw)
    otherwise = choices if alone else []
    if mutants != every:
        otherwise = [*otherwise, *_by_kind(quiet_choice(every, named, is_visible), others, every)]
    return _Subject(
        row=row,
        files={path: files[path] for path in dict.fromkeys(_changed_files(mutants))},
        choices=alone or choices,
        otherwise=otherwise,
        halves=decoy_choices(own if named else {}, draw) if strict else (),
        others=others,
        true={function: true[function] for function in strict if function in true},
        tests=tests if results else {},
        outcomes={test.test_id: test.outcome for test in results},
        fixed=fixed,
        draw=draw,
    )


def _by_kind(quiet: Choice, others: Choice, mutants: Choice) -> list[tuple[MutantKind, Choice]]:
    """Return kind and choice of mutants of each variant.

    Args:
        quiet: functions that are false in quiet variants; none without a quiet mutant.
        others: functions that are false beside them.
        mutants: functions that are false in loud variants.
    """
    kinds = _WITH_QUIET if quiet else _LOUD
    return [(kind, {**others, **quiet} if kind in QUIET else mutants) for kind in kinds]


def _changed_files(mutants: Choice) -> Iterator[str]:
    return (mutant.path for found in mutants.values() for mutant in found)


def _wanted(results: Sequence[TestResult], fixed: Collection[str], draw: random.Random) -> list[str]:
    """Return passed tests to be made false: those that the gold patch fixes, and a sample of the others."""
    passed = [test.test_id for test in results if test.outcome is TestOutcome.PASSED]
    others = [test for test in passed if test not in fixed]
    sample = draw.sample(others, min(len(others), _MAX_PASS_TO_PASS))
    return [*(test for test in passed if test in fixed), *sample]


async def _proven(subject: _Subject, chosen: Sequence[Mutant], execute: Execute) -> Variant | None:
    """Return the variant of those mutants that ended under the gold patch as they must; None for none.

    Tests with a false mutant failed, those with true ones passed.
    """
    for _ in range(_MAX_ATTEMPTS):
        if not chosen:
            return None
        variant = Variant(mutants=tuple(chosen), renamed=_renamed(subject, chosen))
        run = await execute(Reference(content="", files=subject.files), variant)
        if run.verdict is not Verdict.FAILED and not (run.verdict is Verdict.PASSED and variant.true):
            return None
        if variant.true and not subject.outcomes:
            return variant if run.verdict is Verdict.PASSED else None
        if not subject.outcomes:
            # Solutions that pass more of the true tests than the gold patch would keep a part of its reward.
            return replace(variant, score=run.score) if run.score == 0 else None
        outcomes = _outcomes(subject, variant, run)
        edited = {test for mutant in chosen for test in _affected(subject, mutant)}
        if any(how in _NOT_RUN for test, how in outcomes.items() if test not in edited):
            return None  # the files are not those of the true run
        false = [mutant for mutant in chosen if mutant.kind is not MutantKind.TRUE]
        functions = {(mutant.path, mutant.function) for mutant in false}
        kept = [mutant for mutant in chosen if _ended_as_it_must(subject, mutant, functions, outcomes)]
        if len(kept) < len(chosen):
            chosen = kept
            continue
        if variant.true:
            return variant if run.verdict is Verdict.PASSED else None
        own = {test for mutant in false for test in _affected(subject, mutant)}
        failed = {test for test in own if outcomes.get(test) is TestOutcome.FAILED}
        doubtful = {test for test, how in outcomes.items() if how is not TestOutcome.PASSED or test in own}
        return replace(
            variant,
            must_fail=tuple(sorted(failed)),
            doubtful=tuple(sorted(doubtful - failed)),
            score=run.score,
        )
    return None


def _ended_as_it_must(
    subject: _Subject, mutant: Mutant, false: Collection[Function], outcomes: Mapping[str, TestOutcome]
) -> bool:
    """Return whether the tests of a mutant ended as it wants.

    Args:
        false: functions with a false mutant, which decides about those beside it.
    """
    found = [outcomes.get(test) for test in _affected(subject, mutant)]
    if mutant.kind is MutantKind.TRUE:
        own = (mutant.path, mutant.function)
        return own in false or all(outcome is TestOutcome.PASSED for outcome in found)
    return TestOutcome.FAILED in found


def _outcomes(subject: _Subject, variant: Variant, run: RunResult) -> dict[str, TestOutcome]:
    """Return the outcomes in a false run of the tests that passed in the true one."""
    names = {name: test for test, name in variant.renamed}
    found = {names.get(test.test_id, test.test_id): test.outcome for test in run.judgement.tests}
    passed = (test for test, how in subject.outcomes.items() if how is TestOutcome.PASSED)
    return {test: found.get(test, TestOutcome.MISSING) for test in passed}


def _tests_of(subject: _Subject, mutant: Mutant) -> Sequence[str]:
    return subject.tests.get((mutant.path, mutant.function), ())


def _affected(subject: _Subject, mutant: Mutant) -> Sequence[str]:
    """Return the tests that may end otherwise with a mutant: in a table those of the rows that it changes."""
    tests = _tests_of(subject, mutant)
    rows = tuple(f"[{old}]" for old, _ in mutant.parameters)
    return [test for test in tests if test.endswith(rows)] if rows else tests


def _renamed(subject: _Subject, mutants: Sequence[Mutant]) -> tuple[tuple[str, str], ...]:
    """Return the required tests that have other names in a false run, with those names."""
    return tuple(
        (test, f"{test.removesuffix(f'[{old}]')}[{new}]")
        for mutant in mutants
        for old, new in mutant.parameters
        for test in _tests_of(subject, mutant)
        if test.endswith(f"[{old}]")
    )


def _reference(subject: _Subject, variants: Sequence[Variant], decoys: Sequence[Variant]) -> Reference:
    note = ""
    if not subject.files:
        note = "no test of the row can be made false: no test file in a known language was found"
    elif not variants:
        note = "no test that was made false failed under the gold patch"
    paths = {mutant.path for variant in (*variants, *decoys) for mutant in variant.mutants}
    return Reference(
        content=row_content(subject.row),
        outcomes=subject.outcomes,
        files={path: content for path, content in subject.files.items() if path in paths},
        variants=tuple(variants),
        decoys=tuple(decoys),
        coverage=kinds_by_test(variants),
        note=note,
    )
