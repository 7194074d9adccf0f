"""Proof of mutated tests: a row's reference, from runs of its gold patch.

original run ── test files ── mutants ── variants ── a mutated run of each ── mutants that failed
"""

from __future__ import annotations

import asyncio
import random
import re
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from engine.datasets.health import row_content
from engine.errors import DatasetError
from engine.events.health import MutantCoverage
from engine.grading.counterfactual.base import Function, Mutant, MutantKind, Reference, Variant
from engine.grading.counterfactual.python.naming import tests_by_function
from engine.grading.counterfactual.selection import (
    choose,
    kinds_by_test,
    mutants_by_function,
)
from engine.grading.execution import RunResult
from engine.types import TaskRow, TestKind, TestOutcome, TestResult, Verdict

Execute = Callable[[Reference, Variant], Awaitable[RunResult]]
"""Runs the tests of a variant once under the gold patch."""
MAX_VARIANTS = 3
_MAX_ATTEMPTS = 3
_MAX_SAMPLE = 500
"""Maximum number of tests to mutate if the row names none that a solution fixes."""
_SKIPS = re.compile(rb"(?i)skip")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """A row before its mutated runs."""

    files: Mapping[str, bytes]
    mutants: Mapping[Function, Sequence[Mutant]]
    tests: Mapping[Function, Sequence[str]]
    """Tests of each function; empty if the rule reports no test names."""
    wanted: Sequence[str]
    """Tests to mutate, including those without a mutant."""
    draw: random.Random


async def prove(row: TaskRow, original: RunResult, files: Mapping[str, bytes], execute: Execute) -> Reference:
    """Return the reference of a row, with up to three proven variants.

    Args:
        row: the row.
        original: a run of the original tests under the gold patch.
        files: original contents of the test files in it.
        execute: makes a mutated run under the gold patch.

    Raises:
        DatasetError: the row does not pass with its gold patch, or a test file exceeds the parsing limits.
        SandboxError: infrastructure failed.
    """
    if original.verdict is not Verdict.PASSED:
        reason = original.detail or original.verdict
        raise DatasetError(f"the row does not pass with its gold patch: {reason}")
    signs = set(original.signs)

    async def noted(reference: Reference, variant: Variant) -> RunResult:
        run = await execute(reference, variant)
        signs.update(run.signs)
        return run

    subject = await asyncio.to_thread(_subject, original, files)
    used: set[Mutant] = set()
    refused: set[tuple[Function, MutantKind]] = set()
    variants: list[Variant] = []
    for _ in range(MAX_VARIANTS):
        remaining = {
            function: [mutant for mutant in own if (function, mutant.kind) not in refused]
            for function, own in subject.mutants.items()
        }
        chosen = choose(remaining, used, subject.draw)
        if used.issuperset(chosen):
            break  # all were used
        used.update(chosen)
        if (variant := await _proven(subject, chosen, noted)) is not None:
            variants.append(variant)
        kept = variant.mutants if variant is not None else ()
        refused |= {((lost.path, lost.function), lost.kind) for lost in chosen if lost not in kept}
    return _reference(row, original, subject, variants, signs)


def coverage_of(reference: Reference) -> MutantCoverage:
    """Return the number of tests for each best kind of mutant."""
    kinds = Counter(reference.coverage.values())
    return MutantCoverage(
        value=kinds[MutantKind.VALUE],
        changed=kinds[MutantKind.CHANGED],
        added=kinds[MutantKind.ADDED],
        none=kinds[None],
        variants=len(reference.variants),
        note=reference.note,
    )


def _subject(original: RunResult, files: Mapping[str, bytes]) -> _Subject:
    draw = secrets.SystemRandom()
    results = original.judgement.tests
    wanted = _wanted(results, draw)
    # Without test names, a skipped mutated test would go unnoticed.
    known = files if results else {path: text for path, text in files.items() if not _SKIPS.search(text)}
    mutants = mutants_by_function(known, wanted) if wanted or not results else {}
    tests = tests_by_function(mutants, [test.test_id for test in results])
    if results:
        fixed = set(wanted)
        mutants = {function: mutants[function] for function, own in tests.items() if fixed.intersection(own)}
    return _Subject(files=files, mutants=mutants, tests=tests, wanted=wanted, draw=draw)


def _wanted(results: Sequence[TestResult], draw: random.Random) -> list[str]:
    """Return the passed tests that a solution fixes; a sample of all passed tests if these are unknown."""
    passed = [test for test in results if test.outcome is TestOutcome.PASSED]
    if any(test.kind is TestKind.FAIL_TO_PASS for test in results):
        return [test.test_id for test in passed if test.kind is TestKind.FAIL_TO_PASS]
    return [test.test_id for test in draw.sample(passed, min(len(passed), _MAX_SAMPLE))]


async def _proven(subject: _Subject, chosen: Sequence[Mutant], execute: Execute) -> Variant | None:
    """Return the variant of the mutants whose tests failed under the gold patch; None without any.

    A variant that loses mutants is proven again without them.
    """
    for _ in range(_MAX_ATTEMPTS):
        if not chosen:
            return None
        variant = Variant(mutants=tuple(chosen), renamed=_renamed(subject, chosen))
        run = await execute(Reference(content="", files=_changed(subject.files, chosen)), variant)
        if not subject.wanted:
            return variant if run.verdict is Verdict.FAILED and run.score == 0 else None
        outcomes = {test.test_id: test.outcome for test in run.judgement.tests}
        names = dict(variant.renamed)
        failed = {
            test for test in subject.wanted if outcomes.get(names.get(test, test)) is TestOutcome.FAILED
        }
        kept = [mutant for mutant in chosen if failed.intersection(_tests_of(subject, mutant))]
        if len(kept) == len(chosen):
            own = {test for mutant in chosen for test in _tests_of(subject, mutant)}
            return replace(variant, must_fail=tuple(sorted(own & failed)))
        chosen = kept
    return None


def _tests_of(subject: _Subject, mutant: Mutant) -> Sequence[str]:
    return subject.tests.get((mutant.path, mutant.function), ())


def _renamed(subject: _Subject, mutants: Sequence[Mutant]) -> tuple[tuple[str, str], ...]:
    """Return the test names that differ in a mutated run: original, mutated."""
    return tuple(
        (test, f"{test.removesuffix(f'[{old}]')}[{new}]")
        for mutant in mutants
        for old, new in mutant.parameters
        for test in _tests_of(subject, mutant)
        if test.endswith(f"[{old}]")
    )


def _changed(files: Mapping[str, bytes], mutants: Sequence[Mutant]) -> dict[str, bytes]:
    paths = {mutant.path for mutant in mutants}
    return {path: content for path, content in files.items() if path in paths}


def _reference(
    row: TaskRow, original: RunResult, subject: _Subject, variants: Sequence[Variant], signs: set[str]
) -> Reference:
    note = ""
    if not subject.mutants:
        note = "no test of the row can be mutated: no Python test file with such a test was found"
    elif not variants:
        note = "no mutated test failed under the gold patch"
    return Reference(
        content=row_content(row),
        outcomes={test.test_id: test.outcome for test in original.judgement.tests},
        files=_changed(subject.files, [mutant for variant in variants for mutant in variant.mutants]),
        variants=tuple(variants),
        signs=tuple(sorted(signs)),
        coverage=kinds_by_test(variants, subject.wanted),
        note=note,
    )
