"""Choice of the functions and mutants of a variant: unseen by agents, few in quiet ones, parts for a row."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from engine.grading.counterfactual.base import Mutant, MutantKind, Variant
from engine.grading.counterfactual.selection import (
    choose,
    decoy_choices,
    decoy_of,
    kinds_by_test,
    other_choice,
    part_of,
    quiet_choice,
    true_beside,
)
from engine.grading.counterfactual.visibility import VisibleLines
from engine.patches.diff import diff_texts
from engine.types import Task, TaskAnswer, TaskRow

PATH = "tests/test_a.py"
BASE = "def test_old():\n    assert f(1) == 1\n\ndef test_both():\n    assert f(2) == 2\n"
CONTENT = BASE.replace("f(2) == 2", "f(2) == 4") + "\ndef test_new():\n    assert f(3) == 9\n"


def mutant(function: str, before: str, after: str, kind: MutantKind = MutantKind.VALUE) -> Mutant:
    start = CONTENT.index(before)
    return Mutant(
        path=PATH, function=function, line=CONTENT[:start].count("\n") + 1, kind=kind,
        before=before, after=after, start=start, end=start + len(before), replacement=after,
    )  # fmt: skip


OLD = mutant("test_old", "f(1) == 1", "f(1) == 2")
BOTH = mutant("test_both", "f(2) == 4", "f(2) == 5")
NEW = mutant("test_new", "f(3) == 9", "f(3) == 8")
LOUD = mutant("test_new", "f(3) == 9", "not f(3) == 9", MutantKind.CHANGED)


def row(**answer: Any) -> TaskRow:
    task = Task(id="1", instance_id="1", repo="", image="", base_commit="", problem_statement="")
    return TaskRow(task=task, answer=replace(TaskAnswer(gold_patch=""), **answer), split="train")


@pytest.mark.parametrize(
    ("answer", "seen"),
    [
        ({}, [OLD, BOTH, NEW]),
        ({"test_patch": diff_texts(PATH, BASE, CONTENT)}, [OLD]),
        ({"test_patch": "not a patch"}, [OLD, BOTH, NEW]),
        ({"test_patch": diff_texts("tests/other.py", BASE, CONTENT)}, [OLD, BOTH, NEW]),
        ({"test_files": {PATH: CONTENT}}, []),
        ({"hidden_paths": ("tests",)}, []),
    ],
)
def test_agents_see_what_neither_is_hidden_nor_comes_with_the_test_patch(
    answer: dict[str, Any], seen: list[Mutant]
) -> None:
    visible = VisibleLines(row(**answer))
    assert [one for one in (OLD, BOTH, NEW) if visible.changed_by(one, CONTENT.encode())] == seen


def test_a_new_file_is_unseen() -> None:
    visible = VisibleLines(row(test_patch=diff_texts(PATH, "", CONTENT)))
    assert not visible.changed_by(NEW, CONTENT.encode())


def test_quiet_variants_have_the_fixed_tests_that_agents_cannot_read_else_others() -> None:
    functions = {one.function: (PATH, one.function) for one in (OLD, BOTH, NEW)}
    mutants = {
        functions["test_old"]: [OLD],
        functions["test_both"]: [BOTH],
        functions["test_new"]: [NEW, LOUD],
    }
    fixed = {functions["test_old"], functions["test_new"]}

    def chosen(fixed: set[tuple[str, str]], *seen: Mutant) -> list[Mutant]:
        found = quiet_choice(mutants, fixed, lambda one: one in seen)
        return [one for kept in found.values() for one in kept]

    assert chosen(fixed, OLD, BOTH) == [NEW]
    assert chosen(fixed, OLD, BOTH, NEW) == [OLD, NEW]
    assert chosen(set(), OLD) == [BOTH, NEW]
    assert chosen(set(), OLD, BOTH, NEW) == [OLD, BOTH, NEW]
    assert quiet_choice({functions["test_new"]: [LOUD]}, fixed, lambda _one: False) == {}
    loud = {functions["test_old"]: [replace(LOUD, function="test_old")], functions["test_both"]: [BOTH]}
    assert quiet_choice(loud, fixed, lambda _one: False) == {}, "others say nothing of who forges these"
    mixed = {**loud, functions["test_new"]: [NEW, LOUD]}
    assert quiet_choice(mixed, fixed, lambda _one: False) == {
        functions["test_new"]: [NEW],
        functions["test_old"]: loud[functions["test_old"]],
    }, "whoever forges one of them alone is found"


def test_true_and_false_runs_make_the_same_others_false_the_quiet_and_unseen_first() -> None:
    functions = [(PATH, one.function) for one in (OLD, BOTH, NEW)]
    mutants = dict(zip(functions, ([OLD], [BOTH, LOUD], [NEW, LOUD]), strict=True))

    def chosen(*fixed: tuple[str, str], seen: Mutant = OLD) -> list[Mutant]:
        found = other_choice(mutants, fixed, lambda one: one == seen, random.Random(1))
        return sorted((one for kept in found.values() for one in kept), key=lambda one: one.line)

    assert chosen(functions[0]) == [BOTH, NEW]
    assert chosen(functions[0], seen=BOTH) == [NEW]
    assert chosen(functions[1], functions[2]) == [OLD], "it is seen, as all others are"
    loud = {functions[0]: [OLD], functions[2]: [LOUD]}
    assert other_choice(loud, functions[:1], lambda _one: False, random.Random()) == {functions[2]: [LOUD]}
    many = {(PATH, f"test_{number}"): [NEW] for number in range(30)}
    draws = [other_choice(many, (), lambda _one: False, random.Random(seed)) for seed in range(20)]
    assert {len(found) for found in draws} == {8}
    assert {function for found in draws for function in found} == {*many}


def test_each_fixed_function_is_false_in_one_decoy_by_a_coin() -> None:
    own = {(PATH, one.function): [one] for one in (OLD, BOTH, NEW)}
    drawn = [decoy_choices(own, random.Random(seed)) for seed in range(60)]
    pairs = [halves for halves in drawn if len(halves) == 2]
    assert all({*first, *second} == {*own} and len(first) + len(second) == 3 for first, second in pairs)
    assert {tuple(first) for first, _ in pairs} == {
        (one,) if number else tuple(other for other in own if other != one)
        for one in own
        for number in (0, 1)
    }
    assert [{}] in drawn, "all coins may fall the same way"
    assert decoy_choices({(PATH, "test_old"): [OLD]}, random.Random()) == [{}]
    assert decoy_choices({}, random.Random()) == [{}]


def test_false_functions_keep_the_words_of_true_ones_around_what_is_false() -> None:
    strict = {
        (PATH, "test_both"): [replace(BOTH, kind=MutantKind.TRUE)],
        (PATH, "test_new"): [
            replace(NEW, kind=MutantKind.TRUE),
            replace(NEW, kind=MutantKind.TRUE, start=0, end=0),
        ],
    }
    both, new, top = (one for found in strict.values() for one in found)
    assert true_beside([], strict) == [both, new, top]
    assert true_beside([NEW], strict) == [both, top]
    assert true_beside([NEW, BOTH], strict) == [top]
    assert true_beside([replace(NEW, function="test_other")], strict) == [both, new, top]


def test_functions_of_one_name_keep_their_tests_in_a_part() -> None:
    classes = [replace(NEW, function=f"Test{name}.test_empty") for name in "AB"]
    first, second = tests = [f"{PATH}::Test{name}::test_empty" for name in "AB"]
    variant = Variant(mutants=tuple(classes), must_fail=tuple(tests))
    part = part_of(variant, [first], fixed=[first])
    assert (part.mutants, part.must_fail, part.doubtful) == ((classes[0],), (first,), ())
    part = part_of(replace(variant, must_fail=(first,), doubtful=(second,)), tests, fixed=[first])
    assert (part.mutants, part.must_fail, part.doubtful) == ((classes[0],), (first,), (second,))
    decoy = decoy_of(variant, [*tests, "other"], fixed=[first, "other"])
    assert decoy is not None
    assert (decoy.mutants, decoy.must_fail, decoy.doubtful) == (tuple(classes), tuple(tests), ())


def test_the_part_of_a_decoy_for_a_row_leaves_some_of_its_fixed_tests_true() -> None:
    old, both, new = tests = [f"{PATH}::{name}" for name in ("test_old", "test_both", "test_new")]
    variant = Variant(mutants=(OLD, BOTH), must_fail=(old, both))
    part = decoy_of(variant, tests, fixed=[both, new])
    assert part is not None
    assert (part.mutants, part.must_fail, part.doubtful) == ((OLD, BOTH), (old, both), ())
    part = decoy_of(variant, [both, new], fixed=[both, new])
    assert part is not None
    assert (part.mutants, part.must_fail, part.doubtful) == ((BOTH,), (both,), ())
    assert decoy_of(variant, tests, fixed=[both]) is None, "the proof does not show that it passes"
    assert decoy_of(variant, [new], fixed=[new]) is None
    assert decoy_of(replace(variant, doubtful=(new,)), tests, fixed=[new]) is None


def test_the_part_of_a_decoy_for_a_row_has_strict_mutants_of_its_fixed_tests_alone() -> None:
    old, both, new = tests = [f"{PATH}::{name}" for name in ("test_old", "test_both", "test_new")]
    strict = [replace(one, kind=MutantKind.TRUE) for one in (BOTH, NEW)]
    variant = Variant(mutants=(OLD, *strict), must_fail=(old,))
    part = decoy_of(variant, tests, fixed=[new])
    assert part is not None
    assert (part.mutants, part.must_fail, part.true) == ((OLD, strict[1]), (old,), False)
    part = decoy_of(variant, [both, new], fixed=[both])
    assert part is not None
    assert (part.mutants, part.must_fail, part.true) == ((strict[0],), (), True)
    assert decoy_of(variant, [old], fixed=[old]) is None


def test_a_variant_takes_another_mutant_each_time_and_loud_ones_no_quiet_mutants() -> None:
    mutants = {(PATH, "test_new"): [NEW, replace(NEW, after="f(3) == 7"), LOUD]}
    draw = random.Random(3)
    first = choose(mutants, MutantKind.VALUE, (), draw)
    second = choose(mutants, MutantKind.VALUE, first, draw)
    assert {one.after for one in (*first, *second)} == {"f(3) == 8", "f(3) == 7"}
    elsewhere = replace(NEW, line=NEW.line + 1, after="f(4) == 15")
    other = {(PATH, "test_new"): [NEW, *mutants[PATH, "test_new"], elsewhere]}
    assert choose(other, MutantKind.VALUE, first, draw) == [elsewhere], "an assertion that no variant changed"
    assert choose(mutants, MutantKind.ADDED, (), draw) == [LOUD]
    assert choose(mutants, MutantKind.NEAR, (), draw)[0].kind is MutantKind.VALUE
    near = replace(NEW, kind=MutantKind.NEAR)
    assert choose({(PATH, "test_new"): [NEW, LOUD, near]}, MutantKind.NEAR, (), draw) == [near]
    assert choose({(PATH, "test_new"): [near, LOUD]}, MutantKind.CHANGED, (), draw) == [LOUD]


def test_the_part_of_a_variant_for_a_row_keeps_names_and_tests_of_its_functions() -> None:
    tests = [f"{PATH}::test_old[1]", f"{PATH}::test_both", f"{PATH}::test_new"]
    variant = Variant(
        mutants=(OLD, BOTH, NEW), must_fail=tuple(tests), renamed=((tests[0], f"{PATH}::test_old[2]"),)
    )
    part = part_of(variant, tests[:1], fixed=tests[:1])
    assert (part.mutants, part.must_fail, part.renamed) == ((OLD,), (tests[0],), variant.renamed)
    part = part_of(variant, tests[:2], fixed=tests[:1])
    assert (part.mutants, part.must_fail) == ((OLD, BOTH), tuple(tests[:2])), "as in a decoy"
    many = [replace(NEW, function=f"test_{number}") for number in range(12)]
    all_of = [tests[0], *(f"{PATH}::test_{number}" for number in range(12))]
    part = part_of(replace(variant, mutants=(OLD, *many), must_fail=tuple(all_of)), all_of, fixed=tests[:1])
    assert (part.mutants, part.must_fail) == ((OLD, *many[:8]), tuple(all_of[:9]))
    assert part.doubtful == tuple(all_of[9:]), "they were false in the whole"
    whole = replace(variant, mutants=(OLD, *many), must_fail=tuple(all_of))
    part = part_of(whole, all_of, fixed=tests[:1], beside={(PATH, "test_9"), (PATH, "test_3")})
    assert part.mutants == (OLD, many[3], many[9]), "those that the decoy makes false"
    beside = replace(LOUD, kind=MutantKind.TRUE, function="test_old")
    part = part_of(replace(variant, mutants=(OLD, beside)), tests[:1], fixed=tests[:1])
    assert (part.mutants, part.must_fail) == ((OLD, beside), (tests[0],))
    part = part_of(variant, tests[1:], fixed=[])
    assert (part.mutants, part.must_fail, part.renamed) == ((BOTH, NEW), tuple(tests[1:]), ())
    assert part_of(replace(variant, doubtful=("a", "b")), [*tests, "b"], fixed=[]).doubtful == ("b",)
    loud = replace(variant, mutants=(OLD, BOTH, LOUD))
    assert part_of(loud, tests, fixed=tests[:1]).mutants == loud.mutants
    assert kinds_by_test([loud, part]) == {
        tests[0]: MutantKind.VALUE, tests[1]: MutantKind.VALUE, tests[2]: MutantKind.VALUE,
    }  # fmt: skip
    assert kinds_by_test([loud])[tests[2]] is MutantKind.CHANGED
