"""True mutants: solutions pass them, objects that are equal to more than one value do not."""

from __future__ import annotations

import unittest
from collections import defaultdict
from typing import Any

import pytest

from engine.grading.counterfactual.base import Mutant, MutantKind, apply_mutants
from engine.grading.counterfactual.selection import true_beside
from tests.unit.grading.counterfactual.catalogue import (
    CATALOGUE,
    SOLUTIONS,
    failures,
    mutants_of,
    true_mutants_of,
)

_CLASS = "class TestIt({}):\n    def test_it(self):\n        "
_METHOD = f"import unittest\n{_CLASS.format('unittest.TestCase')}"
_HERE = f"from {__name__} import CaselessCase\n"


class _Near(int):
    """A number that is equal to those beside it."""

    def __eq__(self, other: object) -> bool:
        return abs(int(self) - other) <= 1 if isinstance(other, int) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__


class CaselessCase(unittest.TestCase):
    """Base class of tests with a meaning of equality of its own."""

    def __init__(self, method: str) -> None:
        super().__init__(method)
        self.addTypeEqualityFunc(str, self._compare)

    def _compare(self, first: str, second: str, msg: object = None) -> None:
        if first.lower() != second.lower():
            self.fail(str(msg))


@pytest.mark.parametrize("solution", SOLUTIONS)
@pytest.mark.parametrize("case", CATALOGUE)
def test_what_passes_a_test_passes_it_with_all_of_its_true_mutants(case: str, solution: str) -> None:
    source, solve = CATALOGUE[case].encode(), SOLUTIONS[solution]
    failing = set(failures(source, solve))
    true = true_mutants_of(CATALOGUE[case])
    assert {one.function for one in true} == {one.function for one in mutants_of(CATALOGUE[case])}
    assert set(failures(apply_mutants(source, true), solve)) == failing, [one.after for one in true]


@pytest.mark.parametrize("case", CATALOGUE)
def test_a_false_test_reads_as_the_true_one_of_an_author_who_expected_its_value(case: str) -> None:
    source, mutants = CATALOGUE[case].encode(), mutants_of(CATALOGUE[case])
    strict: defaultdict[tuple[str, str], list[Mutant]] = defaultdict(list)
    for one in true_mutants_of(CATALOGUE[case]):
        strict[one.path, one.function].append(one)
    reworded = {one.function for one in mutants if one.kind is MutantKind.NEAR}
    expected = [apply_mutants(source, [one]) for one in mutants if one.kind is MutantKind.VALUE]
    read = {apply_mutants(one, true_mutants_of(one.decode())) for one in expected}
    shown = [
        one
        for one in mutants
        if one.kind is (MutantKind.NEAR if one.function in reworded else MutantKind.VALUE)
    ]
    false = {apply_mutants(source, [one, *true_beside([one], strict)]) for one in shown}
    assert false <= read


@pytest.mark.parametrize("error", [0, 1, -1])
@pytest.mark.parametrize(
    "test",
    [
        "def test_it():\n    assert solve(2) == 4\n",
        "def test_it():\n    assert 100 == solve(10)\n",
        "def test_it():\n    expected = 4\n    assert solve(2) == expected, 'wrong'\n",
        "def test_it():\n    for _ in range(2):\n        assert [solve(3), 2] == [9, 2]\n",
        f"{_METHOD}self.assertEqual(solve(2), 4)\n",
        f"{_METHOD}self.assertEqual(4, solve(2), 'no')\n",
        f"{_METHOD}self.assertListEqual([solve(3), 2], [9, 2])\n",
        "def same(a, b): assert a == b, 'no'\ndef test_it():\n    same(solve(2), 4)\n",
        "def same(a, b): assert b == a\ndef test_it():\n    same(b=4, a=solve(2))\n",
        f"{_METHOD}self.same(4, solve(2))\n    def same(self, a, b): self.assertEqual(a, b)\n",
        f"from unittest import TestCase as T\nclass Base(T): pass\n{_CLASS.format('Base')}"
        "self.assertEqual(solve(2), 4)\n",
    ],
)
def test_a_number_that_is_equal_to_its_neighbours_passes_the_true_test_alone(test: str, error: int) -> None:
    def near(value: int) -> Any:
        return _Near(value * value + error)

    source, strict = test.encode(), true_mutants_of(test)
    assert failures(source, near) == {}
    assert len(failures(apply_mutants(source, strict), near)) == 1
    assert failures(apply_mutants(source, strict), lambda value: value * value) == {}
    assert failures(apply_mutants(source, strict), lambda value: value * value + 1)
    wanted = [one for one in mutants_of(test) if one.kind is MutantKind.NEAR]
    assert wanted
    for one in wanted:
        assert failures(apply_mutants(source, [one]), lambda value: value * value)


@pytest.mark.parametrize(
    "condition",
    [
        "f() == pytest.approx(3)",
        "f() == mock.ANY",
        "f() == g()",
        "f() is True",
        "f() != 3",
        "f() > 3",
        "3 == 3",
        "1 < f() == 3",
    ],
)
def test_what_is_no_equality_with_a_constant_stays_beside_one_more_assertion(condition: str) -> None:
    source = f"def test_it():\n    assert {condition}\n"
    (mutant,) = true_mutants_of(source)
    assert (mutant.before, mutant.start, mutant.end) == (
        "",
        source.index("    assert"),
        source.index("    assert"),
    )
    assert failures(f"def test_it():\n    {mutant.after}\n".encode(), None) == {}


def test_parameters_and_tables_stay() -> None:
    table = "@pytest.mark.parametrize('a, b', [(1, 2)])\ndef test_it(a, b):\n    assert f(a) == b\n"
    loop = "def test_it():\n    for a, b in [(1, 2), (3, 4)]:\n        assert f(a) == b\n"
    assert [one.before for source in (table, loop) for one in true_mutants_of(source)] == ["", ""]


@pytest.mark.parametrize(
    ("test", "solution"),
    [
        (f"{_METHOD}self.assertSequenceEqual(solve(2), [2, 4])\n", lambda value: (value, value * 2)),
        (f"{_HERE}{_CLASS.format('CaselessCase')}self.assertEqual(solve(2), 'four')\n", lambda _: "Four"),
        (
            f"{_HERE}class Base(CaselessCase): pass\n{_CLASS.format('Base')}"
            "self.assertEqual(solve(2), 'four')\n",
            lambda _: "FOUR",
        ),
    ],
)
def test_a_solution_that_an_assertion_method_accepts_passes_its_true_test(test: str, solution: Any) -> None:
    source = test.encode()
    assert failures(source, solution) == {}
    assert failures(apply_mutants(source, true_mutants_of(test)), solution) == {}
    wanted = [one for one in mutants_of(test) if one.kind is MutantKind.NEAR]
    assert [one for one in wanted if not failures(apply_mutants(source, [one]), solution)] == []


@pytest.mark.parametrize(
    "result", ["(solve(2) or 4)", "(solve(2) if solve(1) else 0)", "(solve(2)\n        + 0)", "(lambda: 4)()"]
)
def test_a_solution_fails_what_is_wanted_beside_a_compound_result(result: str) -> None:
    for test in (f"def test_it():\n    assert {result} == 4\n", f"{_METHOD}self.assertEqual({result}, 4)\n"):
        source = test.encode()
        assert failures(source, lambda value: value * value) == {}
        assert failures(apply_mutants(source, true_mutants_of(test)), lambda value: value * value) == {}
        wanted = [one for one in mutants_of(test) if one.kind is MutantKind.NEAR]
        passed = [one.after for one in wanted if not failures(apply_mutants(source, [one]), lambda x: x * x)]
        assert passed == []
