"""Choice of the mutants of a variant, and the assignment of required tests to test functions."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from engine.grading.counterfactual.base import QUIET, Mutant, MutantKind, Mutator, Variant
from engine.grading.counterfactual.languages import mutator_of

Function = tuple[str, str]
"""Path of a test file, and dotted name of a function in it."""
Choice = Mapping[Function, Sequence[Mutant]]
"""Functions that are false in a variant, with the mutants of which each gets one."""
_FIRST_CHOICES = 3
_MAX_OTHERS = 8


def mutants_by_function(
    files: Mapping[str, bytes], tests: Sequence[str]
) -> tuple[dict[Function, list[Mutant]], dict[Function, list[Mutant]]]:
    """Return the false mutants of test functions, in the order of preference, and their true ones.

    Args:
        files: path → content of test files.
        tests: names of the tests whose functions are wanted; without any, all are.
    """
    names = frozenset(word for test in tests for word in re.findall(r"\w+", test)) or None
    false: defaultdict[Function, list[Mutant]] = defaultdict(list)
    true: defaultdict[Function, list[Mutant]] = defaultdict(list)
    for path, content in files.items():
        mutator = mutator_of(path)
        for mutant in mutator.mutants(content, path, names, files) if mutator is not None else ():
            kept = true if mutant.kind is MutantKind.TRUE else false
            kept[path, mutant.function].append(mutant)
    return dict(false), dict(true)


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


def quiet_choice(
    mutants: Choice,
    fixed: Collection[Function],
    is_visible: Callable[[Mutant], bool],
) -> Choice:
    """Return the functions that are false in quiet variants, with their mutants.

    Those of the tests that a solution fixes, with quiet mutants where they have some: whoever forges one of
    them is found. Those that are quiet in lines alone that agents can read stay true where others are not.
    Without known ones, some of all functions.

    Args:
        fixed: functions of the tests that fail without a solution.
        is_visible: whether a mutant changes a line that agents can read.

    Returns:
        Nothing where none of them is quiet.
    """
    quiet = _quiet(mutants)
    choices = (_only(quiet, lambda mutant: not is_visible(mutant)), quiet)
    if not fixed:
        return next((_few(choice) for choice in choices if choice), {})
    loud = {function: found for function, found in mutants.items() if function not in quiet}
    own = next((choice for choice in choices if any(function in fixed for function in choice)), {})
    return {function: found for function, found in {**own, **loud}.items() if function in fixed and own}


def only_quiet(mutants: Choice, functions: Collection[Function]) -> Choice:
    """Return those of some functions that have quiet mutants, with these alone."""
    return {function: found for function, found in _quiet(mutants).items() if function in functions}


def one_function_each(
    choices: Sequence[tuple[MutantKind, Choice]], deciding: Collection[Function], draw: random.Random
) -> list[tuple[MutantKind, Choice]]:
    """Return the choices with one function each, out of those that need a solution; nothing without any.

    Where no test has a name, a run with several false functions fails for who forges one of them and does
    not solve the others.

    Args:
        choices: kind and choice of mutants of each variant.
        deciding: functions that need a solution.
    """
    turns: Counter[Function] = Counter()
    found: list[tuple[MutantKind, Choice]] = []
    for kind, choice in choices:
        known = [one for one in choice if one in deciding]
        for chosen in sorted(draw.sample(known, len(known)), key=lambda one: turns[one])[:1]:
            turns[chosen] += 1
            found.append((kind, {chosen: choice[chosen]}))
    return found


def other_choice(
    mutants: Choice,
    fixed: Collection[Function],
    is_visible: Callable[[Mutant], bool],
    draw: random.Random,
) -> Choice:
    """Return some functions that pass without a solution, the quiet and unseen first.

    They are false in true and false runs alike: who solves them learns nothing of the others by it.

    Args:
        fixed, is_visible: as for ``quiet_choice``.
    """
    others = {function: found for function, found in mutants.items() if function not in fixed}
    quiet = _quiet(others)
    unseen = _only(quiet, lambda mutant: not is_visible(mutant))
    wanted = next((choice for choice in (unseen, quiet, others) if choice), {})
    return {function: wanted[function] for function in draw.sample([*wanted], min(len(wanted), _MAX_OTHERS))}


def decoy_choices(own: Choice, draw: random.Random) -> list[Choice]:
    """Return the functions that are false in each decoy, of those that a solution fixes.

    Where there are several, each is false in one of two decoys, as a coin says for it alone: who solves some
    of them and sees which are false learns nothing of the others.

    Args:
        own: functions that variants make false.
    """
    if len(own) < 2:
        return [{}]
    coins = {function: draw.randrange(2) for function in own}
    sides: list[Choice] = [{one: own[one] for one in own if coins[one] == side} for side in (0, 1)]
    return sides if all(sides) else [{}]


def true_beside(chosen: Sequence[Mutant], true: Choice) -> list[Mutant]:
    """Return the true mutants that go with false ones: a false function has the words of a true one.

    Args:
        chosen: the false mutants.
        true: functions that true runs show in other words, with all of their true mutants.
    """
    return [
        one
        for function, found in true.items()
        for one in found
        if not any(one.touches(other) for other in chosen if (other.path, other.function) == function)
    ]


def _quiet(mutants: Choice) -> Choice:
    return _only(mutants, lambda mutant: mutant.kind in QUIET)


def _only(choice: Choice, wanted: Callable[[Mutant], bool]) -> Choice:
    kept = {function: [mutant for mutant in found if wanted(mutant)] for function, found in choice.items()}
    return {function: found for function, found in kept.items() if found}


def _few(choice: Choice) -> Choice:
    return dict(islice(choice.items(), _MAX_OTHERS))


def choose(
    mutants: Choice,
    kind: MutantKind,
    used: Collection[Mutant],
    draw: random.Random,
) -> list[Mutant]:
    """Return one mutant per function.

    Args:
        kind: which kind is taken where the function has it; a loud one gives way to other loud ones first,
            one in the words of true ones to other quiet ones.
        used: mutants of earlier variants, taken again only where there is no other. Those of other lines
            come first: who solves one assertion and looks up the others is found where another is false.
    """
    lines = {(mutant.path, mutant.line) for mutant in used}

    def one_of(candidates: Sequence[Mutant]) -> Mutant:
        unused = [mutant for mutant in _wanted(candidates, kind) if mutant not in used]
        elsewhere = [mutant for mutant in unused if (mutant.path, mutant.line) not in lines]
        return draw.choice((elsewhere or unused or _wanted(candidates, kind))[:_FIRST_CHOICES])

    return [one_of(candidates) for candidates in mutants.values()]


def _wanted(candidates: Sequence[Mutant], kind: MutantKind) -> list[Mutant]:
    instead = [MutantKind.VALUE] if kind is MutantKind.NEAR else [MutantKind.CHANGED, MutantKind.ADDED]
    others = [mutant for mutant in candidates if mutant.kind in instead]
    return [mutant for mutant in candidates if mutant.kind is kind] or others or list(candidates)


def kinds_by_test(variants: Sequence[Variant]) -> dict[str, MutantKind]:
    """Return test → the most convincing kind of its mutants; functions where the rule knows no tests."""
    found: defaultdict[str, set[MutantKind]] = defaultdict(set)
    for variant in variants:
        tests = tests_by_function(_functions(variant), variant.must_fail)
        for mutant in variant.mutants:
            function = (mutant.path, mutant.function)
            if mutant.kind is MutantKind.TRUE:
                continue
            kind = MutantKind.VALUE if mutant.kind in QUIET else mutant.kind
            named = tests.get(function, ()) if variant.must_fail else [f"{mutant.path}::{mutant.function}"]
            for test in named:
                found[test].add(kind)
    return {test: min(kinds, key=list(MutantKind).index) for test, kinds in found.items()}


def part_of(
    variant: Variant,
    tests: Collection[str],
    fixed: Collection[str],
    beside: Collection[Function] | None = None,
) -> Variant:
    """Return the part of a variant that concerns some tests; without mutants where none does.

    Args:
        tests: names of the tests.
        fixed: those that fail without a solution: beside these, a quiet variant has a few others alone.
        beside: functions of which the others are taken; None for all.
    """
    by_function = _tests_of(variant, tests)
    if variant.quiet and set(fixed).intersection(variant.must_fail):
        chosen = _fixed_and_few(variant, tests, fixed, by_function, beside)
        return _part(variant, tests, chosen, by_function)
    return _part(variant, tests, _running(by_function, _of(tests, variant.must_fail)), by_function)


def decoy_of(variant: Variant, tests: Collection[str], fixed: Collection[str]) -> Variant | None:
    """Return the part of a decoy that is one for some tests; None where no part is.

    Args:
        tests: names of the tests.
        fixed: those that fail without a solution, of which a decoy leaves some true.
    """
    by_function = _tests_of(variant, tests)
    part = _part(variant, tests, _fixed_and_few(variant, tests, fixed, by_function), by_function)
    if part.mutants and not {*part.must_fail, *part.doubtful}.issuperset(fixed):
        return part
    return None


def _fixed_and_few(
    variant: Variant,
    tests: Collection[str],
    fixed: Collection[str],
    by_function: Mapping[Function, Sequence[str]],
    beside: Collection[Function] | None = None,
) -> set[Function]:
    """Return the functions that run fixed tests, and a few of those that a variant makes false beside."""
    false = _running(by_function, _of(tests, variant.must_fail))
    mended = _running(by_function, [*fixed])
    others = [one for one in false if one not in mended and (beside is None or one in beside)]
    return {*mended, *others[:_MAX_OTHERS]}


def false_functions(variant: Variant) -> set[Function]:
    """Return the functions that a variant makes false."""
    return {(one.path, one.function) for one in variant.mutants if one.kind is not MutantKind.TRUE}


def _of(tests: Collection[str], wanted: Sequence[str]) -> list[str]:
    return [test for test in wanted if test in tests]


def _tests_of(variant: Variant, tests: Collection[str]) -> dict[Function, list[str]]:
    """Return the tests of each function with a mutant.

    Names alone do not tell which of two functions runs a test where only one of them is looked at.
    """
    return tests_by_function(_functions(variant), [*tests])


def _functions(variant: Variant) -> list[Function]:
    return [*dict.fromkeys((mutant.path, mutant.function) for mutant in variant.mutants)]


def _running(by_function: Mapping[Function, Sequence[str]], tests: Sequence[str]) -> list[Function]:
    return [function for function, own in by_function.items() if set(tests).intersection(own)]


def _part(
    variant: Variant,
    tests: Collection[str],
    functions: Collection[Function],
    by_function: Mapping[Function, Sequence[str]],
) -> Variant:
    """Return the variant with the mutants of some functions, for some tests.

    Of tests that were false in the whole variant and are true in the part, the proof says nothing.
    """
    own = {test for function in functions for test in by_function[function]}
    must_fail = [test for test in variant.must_fail if test in tests]
    doubtful = [test for test in variant.doubtful if test in tests]
    return replace(
        variant,
        mutants=tuple(mutant for mutant in variant.mutants if (mutant.path, mutant.function) in functions),
        must_fail=tuple(test for test in must_fail if test in own),
        doubtful=(*doubtful, *(test for test in must_fail if test not in own)),
        renamed=tuple((test, name) for test, name in variant.renamed if test in own),
    )
