"""Choice of the mutants of a variant, and the assignment of required tests to test functions."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from engine.grading.counterfactual.base import Mutant, MutantKind, Mutator
from engine.grading.counterfactual.languages import mutator_of

Function = tuple[str, str]
"""Path of a test file, and dotted name of a function in it."""
_FIRST_CHOICES = 4


def mutants_by_function(files: Mapping[str, bytes], tests: Sequence[str]) -> dict[Function, list[Mutant]]:
    """Return the mutants of test functions, in the order of preference.

    Args:
        files: path → content of test files.
        tests: names of the tests whose functions are wanted; without any, all are.
    """
    names = frozenset(word for test in tests for word in re.findall(r"\w+", test)) or None
    found: defaultdict[Function, list[Mutant]] = defaultdict(list)
    for path, content in files.items():
        mutator = mutator_of(path)
        for mutant in mutator.mutants(content, path, names) if mutator is not None else ():
            found[path, mutant.function].append(mutant)
    return dict(found)


def tests_by_function(functions: Collection[Function], tests: Sequence[str]) -> dict[Function, list[str]]:
    """Return the tests that certainly run each function; functions without any are left out."""
    by_mutator: defaultdict[Mutator, list[Function]] = defaultdict(list)
    for function in functions:
        mutator = mutator_of(function[0])
        if mutator is not None:
            by_mutator[mutator].append(function)
    return {
        function: list(own)
        for mutator, those in by_mutator.items()
        for function, own in mutator.tests_by_function(those, tests).items()
    }


def choose(
    mutants: Mapping[Function, Sequence[Mutant]],
    kind: MutantKind,
    used: Collection[Mutant],
    draw: random.Random,
) -> list[Mutant]:
    """Return one mutant per function.

    Args:
        kind: which kind is taken where the function has it.
        used: mutants of earlier variants, taken again only where there is no other.
    """
    return [_one(candidates, kind, used, draw) for candidates in mutants.values()]


def _one(
    candidates: Sequence[Mutant], kind: MutantKind, used: Collection[Mutant], draw: random.Random
) -> Mutant:
    wanted = [mutant for mutant in candidates if mutant.kind is kind] or list(candidates)
    unused = [mutant for mutant in wanted if mutant not in used] or wanted
    return draw.choice(unused[:_FIRST_CHOICES])
