"""Mutants of test functions, the tests that run these, and the choice of a variant's mutants."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from engine.errors import DatasetError, HostileInputError
from engine.grading.counterfactual.base import Function, Mutant, MutantKind, Variant
from engine.grading.counterfactual.python.mutator import python_mutants
from engine.grading.counterfactual.python.naming import tests_by_function
from engine.isolation import SOURCE_LIMITS, call_isolated

Choice = Mapping[Function, Sequence[Mutant]]
"""Test functions with their mutants, in the order of preference."""


def mutants_by_function(files: Mapping[str, bytes], tests: Sequence[str]) -> dict[Function, list[Mutant]]:
    """Return the mutants of test functions, in the order of preference.

    Args:
        files: path → content of test files.
        tests: names of the tests whose functions to mutate; all functions without any.

    Raises:
        DatasetError: a file cannot be parsed within limits.
    """
    names = frozenset(word for test in tests for word in re.findall(r"\w+", test)) or None
    by_function: defaultdict[Function, list[Mutant]] = defaultdict(list)
    for path, content in files.items():
        try:
            mutants = call_isolated(partial(python_mutants, content, path, names), SOURCE_LIMITS)
        except HostileInputError as error:
            raise DatasetError(f"{path}: {error}") from error
        for mutant in mutants:
            by_function[path, mutant.function].append(mutant)
    return dict(by_function)


def choose(mutants: Choice, used: Collection[Mutant], draw: random.Random) -> list[Mutant]:
    """Return one mutant per function, of its best available kind.

    Args:
        mutants: functions with their mutants.
        used: mutants of earlier variants, reused only if there is no other. Mutants of other lines come
            first: they catch a submission that looks up the answer to a single assertion.
        draw: random generator for the choice among equals.
    """
    lines = {(mutant.path, mutant.line) for mutant in used}
    chosen: list[Mutant] = []
    for candidates in mutants.values():
        fitting = [mutant for mutant in candidates if not any(map(mutant.overlaps, chosen))]
        if not fitting:
            continue
        best = min((mutant.kind for mutant in fitting), key=list(MutantKind).index)
        of_kind = [mutant for mutant in fitting if mutant.kind is best]
        unused = [mutant for mutant in of_kind if mutant not in used]
        elsewhere = [mutant for mutant in unused if (mutant.path, mutant.line) not in lines]
        chosen.append(draw.choice(elsewhere or unused or of_kind))
    return chosen


def kinds_by_test(variants: Sequence[Variant], tests: Collection[str]) -> dict[str, MutantKind | None]:
    """Return test → its best kind of mutant, None without any; functions if the rule reports no names."""
    kinds: dict[str, MutantKind | None] = dict.fromkeys(tests)
    for variant in variants:
        by_function = tests_by_function(_functions(variant), variant.must_fail)
        for mutant in variant.mutants:
            own = by_function.get((mutant.path, mutant.function), ())
            for test in own if variant.must_fail else [f"{mutant.path}::{mutant.function}"]:
                known = kinds.get(test) or mutant.kind
                kinds[test] = min(known, mutant.kind, key=list(MutantKind).index)
    return kinds


def part_of(variant: Variant, fixed: Collection[str], tests: Collection[str]) -> Variant:
    """Return the part of a variant that concerns some tests; without mutants if none does.

    Args:
        variant: mutants of more tests.
        fixed: the tests to mutate.
        tests: names of all tests that are run.
    """
    must_fail = tuple(test for test in variant.must_fail if test in fixed)
    by_function = tests_by_function(_functions(variant), [*tests])
    functions = {function for function, own in by_function.items() if set(must_fail).intersection(own)}
    mutants = tuple(mutant for mutant in variant.mutants if (mutant.path, mutant.function) in functions)
    own = {test for mutant in mutants for test in by_function[mutant.path, mutant.function]}
    renamed = tuple((test, name) for test, name in variant.renamed if test in own)
    return replace(variant, mutants=mutants, must_fail=must_fail, renamed=renamed)


def _functions(variant: Variant) -> list[Function]:
    return [*dict.fromkeys((mutant.path, mutant.function) for mutant in variant.mutants)]
