"""Proof of false tests: a row's reference, from runs of its gold patch.

true run ── test files ── mutants ── variants ── a false run of each ── mutants that failed
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from engine.datasets.health import row_content
from engine.errors import DatasetError
from engine.events.health import MutantCoverage
from engine.grading.counterfactual.base import (
    Mutant,
    MutantKind,
    Reference,
    Variant,
    variant_files,
)
from engine.grading.counterfactual.selection import Function, choose, mutants_by_function, tests_by_function
from engine.grading.evidence import required
from engine.grading.execution import RunResult
from engine.types import TaskRow, TestKind, TestOutcome, TestResult, Verdict

Execute = Callable[[Mapping[str, bytes]], Awaitable[RunResult]]
"""Runs the tests once under the gold patch, with the given contents of the test files."""
KINDS = (MutantKind.CHANGED, MutantKind.ADDED, MutantKind.CHANGED)
"""Preferred kind of the mutants of each variant."""
_MAX_PASS_TO_PASS = 20
_NOT_RUN = frozenset({TestOutcome.MISSING, TestOutcome.ERROR})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """A row with what is known of it before its false runs."""

    row: TaskRow
    true_run: RunResult
    files: Mapping[str, bytes]
    mutants: Mapping[Function, Sequence[Mutant]]
    tests: Mapping[Function, Sequence[str]]
    """Required tests of each function with mutants; empty where the rule knows no tests by name."""
    outcomes: Mapping[str, TestOutcome]
    """Outcome of every required test in the true run."""
    draw: random.Random


async def prove(
    row: TaskRow,
    true_run: RunResult,
    files: Mapping[str, bytes],
    execute: Execute,
    *,
    variants: int = len(KINDS),
) -> Reference:
    """Return the reference of a row, with up to ``variants`` proven variants.

    Args:
        true_run: a run of the true tests under the gold patch.
        files: true contents of the test files in it.
        execute: makes a false run under the gold patch.

    Raises:
        DatasetError: the row does not pass with its gold patch.
        SandboxError: infrastructure failed.
    """
    signs = set(true_run.signs)

    async def noted(files: Mapping[str, bytes]) -> RunResult:
        run = await execute(files)
        signs.update(run.signs)
        return run

    if true_run.verdict is not Verdict.PASSED:
        raise DatasetError(
            f"the row does not pass with its gold patch: {true_run.detail or true_run.verdict}"
        )
    subject = await asyncio.to_thread(_subject, row, true_run, files)
    found: list[Variant] = []
    used: set[Mutant] = set()
    for number in range(variants if subject.mutants else 0):
        chosen = choose(subject.mutants, KINDS[number % len(KINDS)], used, subject.draw)
        used.update(chosen)
        variant = await _proven(subject, chosen, noted)
        if variant is not None:
            found.append(variant)
    return replace(_reference(subject, found), signs=tuple(sorted(signs)))


def coverage_of(row: TaskRow, reference: Reference) -> MutantCoverage:
    """Return the numbers of the row's tests that can be made false."""
    kinds = Counter(reference.coverage.values())
    covered = sum(kinds.values())
    tests = set(reference.outcomes) | {test for test, _ in required(row.answer)} | set(row.answer.expected)
    named = any(variant.must_fail for variant in reference.variants)
    return MutantCoverage(
        changed=kinds[MutantKind.CHANGED],
        added=kinds[MutantKind.ADDED],
        none=len(tests) - covered if named or not covered else 0,
        variants=len(reference.variants),
        note=reference.note,
    )


def _subject(row: TaskRow, true_run: RunResult, files: Mapping[str, bytes]) -> _Subject:
    draw = secrets.SystemRandom()
    results = true_run.judgement.tests
    wanted = _wanted(results, draw)
    mutants = mutants_by_function(files, wanted) if wanted or not results else {}
    tests = tests_by_function(mutants, wanted)
    if results:
        mutants = {function: mutants[function] for function in tests}
    return _Subject(
        row=row,
        true_run=true_run,
        files={path: files[path] for path in dict.fromkeys(path for path, _ in mutants)},
        mutants=mutants,
        tests=tests,
        outcomes={test.test_id: test.outcome for test in results},
        draw=draw,
    )


def _wanted(results: Sequence[TestResult], draw: random.Random) -> list[str]:
    """Return passed tests to be made false: those that the gold patch fixes, and a sample of the others."""
    passed = [test for test in results if test.outcome is TestOutcome.PASSED]
    fixed = [test.test_id for test in passed if test.kind is TestKind.FAIL_TO_PASS]
    others = [test.test_id for test in passed if test.kind is TestKind.PASS_TO_PASS]
    return fixed + draw.sample(others, min(len(others), _MAX_PASS_TO_PASS))


async def _proven(subject: _Subject, chosen: Sequence[Mutant], execute: Execute) -> Variant | None:
    """Return the variant of those mutants that made the gold patch fail; None where none did."""
    draft = Reference(content="", files=subject.files)
    run = await execute(variant_files(draft, Variant(mutants=tuple(chosen))))
    if run.verdict is not Verdict.FAILED:
        return None
    if not subject.outcomes:
        proven = run.score < subject.true_run.score
        return Variant(mutants=tuple(chosen), score=run.score) if proven else None
    outcomes = {test.test_id: test.outcome for test in run.judgement.tests}
    own_tests = {test for mutant in chosen for test in subject.tests[mutant.path, mutant.function]}
    true_passes = {test for test, how in subject.outcomes.items() if how is TestOutcome.PASSED}
    if any(outcomes.get(test, TestOutcome.MISSING) in _NOT_RUN for test in true_passes - own_tests):
        return None  # the files are not those of the true run
    failed = {test for test, how in outcomes.items() if how is TestOutcome.FAILED}
    kept: list[Mutant] = []
    must_fail: dict[str, None] = {}
    for mutant in chosen:
        own = [test for test in subject.tests[mutant.path, mutant.function] if test in failed]
        if own:
            kept.append(mutant)
            must_fail.update(dict.fromkeys(own))
    # The score of all chosen mutants says nothing of fewer: then names and the rule alone decide.
    score = run.score if len(kept) == len(chosen) else subject.true_run.score
    return Variant(mutants=tuple(kept), must_fail=tuple(must_fail), score=score) if kept else None


def _reference(subject: _Subject, variants: Sequence[Variant]) -> Reference:
    coverage: dict[str, MutantKind] = {}
    for variant in variants:
        for mutant in variant.mutants:
            function = (mutant.path, mutant.function)
            own = subject.tests[function] if subject.outcomes else [f"{mutant.path}::{mutant.function}"]
            for test in own:
                if mutant.kind is MutantKind.CHANGED or test not in coverage:
                    coverage[test] = mutant.kind
    note = ""
    if not subject.mutants:
        note = "no test of the row can be made false: no test file in a known language was found"
    elif not variants:
        note = "no test that was made false failed under the gold patch"
    paths = {mutant.path for variant in variants for mutant in variant.mutants}
    return Reference(
        content=row_content(subject.row),
        outcomes={test: how for test, how in subject.outcomes.items() if how is not TestOutcome.PASSED},
        files={path: content for path, content in subject.files.items() if path in paths},
        variants=tuple(variants),
        coverage=coverage,
        note=note,
    )
