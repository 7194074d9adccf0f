"""Choice of a variant's mutants, and the part of a variant for the tests of a row."""

from __future__ import annotations

import random

from engine.grading.counterfactual.base import Mutant, MutantKind, Variant
from engine.grading.counterfactual.selection import choose, kinds_by_test, mutants_by_function, part_of

PATH = "tests/test_a.py"


def mutant(function: str, line: int, kind: MutantKind = MutantKind.VALUE, *, at: int = 0) -> Mutant:
    start = at or 100 * line
    return Mutant(
        path=PATH, function=function, line=line, kind=kind, before="f() == 1", after="f() == 2",
        start=start, end=start + 5, replacement="2",
    )  # fmt: skip


def test_each_function_gets_a_mutant_of_the_best_kind() -> None:
    best, worse = mutant("test_a", 1), mutant("test_a", 2, MutantKind.CHANGED)
    other, added = mutant("test_b", 3, MutantKind.CHANGED), mutant("test_b", 4, MutantKind.ADDED)
    choice = {(PATH, "test_a"): [worse, best], (PATH, "test_b"): [added, other], (PATH, "test_c"): []}
    assert choose(choice, [], random.Random(0)) == [best, other]


def test_choice_prefers_mutants_of_unused_lines_then_unused_mutants() -> None:
    first, same_line, elsewhere = mutant("test_a", 1), mutant("test_a", 1, at=150), mutant("test_a", 2)
    choice = {(PATH, "test_a"): [first, same_line, elsewhere]}
    draw = random.Random(0)
    assert choose(choice, [first], draw) == [elsewhere]
    assert choose(choice, [first, elsewhere], draw) == [same_line]
    assert choose(choice, [first, elsewhere, same_line], draw)[0] in [first, elsewhere, same_line]


def test_mutants_of_the_same_position_are_not_chosen_together() -> None:
    shared, rival, free = mutant("test_a", 1), mutant("test_b", 1), mutant("test_b", 9, MutantKind.ADDED)
    choice = {(PATH, "test_a"): [shared], (PATH, "test_b"): [rival, free]}
    assert choose(choice, [], random.Random(0)) == [shared, free]


def test_mutants_are_limited_to_functions_of_the_given_tests() -> None:
    files = {PATH: b"def test_a():\n    assert f() == 1\ndef test_b():\n    assert f() == 1\n", "a.js": b"x"}
    assert mutants_by_function(files, [f"{PATH}::test_a[1]"]).keys() == {(PATH, "test_a")}
    assert mutants_by_function(files, []).keys() == {(PATH, "test_a"), (PATH, "test_b")}


def test_the_best_mutant_kind_of_each_test_is_counted() -> None:
    changed, value = mutant("test_a", 1, MutantKind.CHANGED), mutant("test_a", 2)
    added = mutant("test_b", 3, MutantKind.ADDED)
    tests = [f"{PATH}::test_a", f"{PATH}::test_b", f"{PATH}::test_c"]
    variants = [
        Variant(mutants=(changed, added), must_fail=(tests[0], tests[1])),
        Variant(mutants=(value, added), must_fail=(tests[0],)),
    ]
    kinds = dict(zip(tests, (MutantKind.VALUE, MutantKind.ADDED, None), strict=True))
    assert kinds_by_test(variants, tests) == kinds
    assert kinds_by_test([Variant(mutants=(changed,))], []) == {f"{PATH}::test_a": MutantKind.CHANGED}


def test_a_row_gets_the_mutants_of_its_own_tests() -> None:
    own, other = mutant("test_a", 1), mutant("test_b", 2)
    first, second, third = f"{PATH}::test_a[1]", f"{PATH}::test_a[2]", f"{PATH}::test_b"
    renamed = tuple((test, f"{test}!") for test in (first, second, third))
    variant = Variant(mutants=(own, other), must_fail=(first, second, third), renamed=renamed)
    part = part_of(variant, {first}, {first, second})
    assert (part.mutants, part.must_fail, part.renamed) == ((own,), (first,), renamed[:2])
    assert part_of(variant, {"tests/test_c.py::test_c"}, {third}).mutants == ()
