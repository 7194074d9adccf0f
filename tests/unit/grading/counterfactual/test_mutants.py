"""Mutants of Python tests: each fails for every solution that passes the original test.

Forgers pass them: objects equal to everything, and answers read from the frame of the test.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

from engine.grading.counterfactual.base import MutantKind, apply_mutants
from tests.unit.grading.counterfactual.catalogue import (
    CATALOGUE,
    SOLUTIONS,
    changed,
    failures,
    mutants_of,
    values,
)


@pytest.mark.parametrize("case", CATALOGUE)
def test_every_mutant_fails_for_every_solution_that_passes(case: str) -> None:
    source = CATALOGUE[case].encode()
    for name, solve in SOLUTIONS.items():
        passing = failures(source, solve)
        mutants = [mutant for mutant in mutants_of(CATALOGUE[case]) if mutant.function not in passing]

        assert mutants or name == "subclass"
        for mutant in mutants:
            failing = set(failures(apply_mutants(source, [mutant]), solve))
            assert failing == {*passing, mutant.function}, mutant


@pytest.mark.parametrize(
    "body",
    [
        "if x:\n        assert f() == 3",
        "for a in x:\n        assert f() == 3",
        "try:\n        assert f() == 3\n    except AssertionError:\n        pass",
        "with pytest.raises(Exception):\n        assert f() == 3",
        "with suppress(AssertionError):\n        assert f() == 3",
        "def inner():\n        assert f() == 3\n    inner()",
        "if f() is None:\n        return\n    assert f() == 3",
        "for a in [1, 2]:\n        if f():\n            break\n        assert f() == 3",
        "rows = [3]\n    g(rows)\n    for y in rows:\n        assert f() == y",
        "assert_array_equal(f(), x)",
        "helper(f(), 3)",
    ],
)
def test_assertions_that_may_not_decide_are_not_mutated(body: str) -> None:
    source = f"def test_it():\n    {body}\n"
    assert values(source) == []
    assert [assertion for assertion in changed(source) if "OtherError" not in assertion] == []
    assert mutants_of(source), "a false assertion can be added to every test"


@pytest.mark.parametrize(
    "condition",
    [
        "f() == [mock.ANY, g()]",
        "isclose(f(), 3) == 1",
        "f() > g()",
        "f() != g()",
        "f() == 3 or g() == 3",
        "f() == pytest.approx(3, rel=g())",
        "f() == g() == h()",
        "all(f(x) == 3 for x in () if x)",
    ],
)
def test_conditions_without_a_known_expected_value_are_negated(condition: str) -> None:
    source = f"def test_it():\n    assert {condition}\n"
    assert values(source) == []
    assert changed(source) == [f"assert not ({condition})"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("assert f() == 3", "assert f() == 4"),
        ("assert 'x' == f()", "assert 'y' == f()"),
        ("assert f() == 'Ab9'", "assert f() == 'Ab0'"),
        ("assert f() == '1.2+local'", "assert f() == '1.3+local'"),
        ("assert f() == ''", "assert f() == 'x'"),
        ("assert f() == b'ab'", "assert f() == b'ac'"),
        ("assert f() == {'a': g(), 'b': True}", "assert f() == {'a': g(), 'b': False}"),
        ("assert f() == None", "assert f() == 0"),
        ("assert f() == pytest.approx(50, abs=2)", "assert f() == pytest.approx(84.0, abs=2)"),
        ("assert f() == g()", "assert f() == other(g())"),
        ("assert f() in (1, g())", 'assert f() in [("other",)]'),
        ("assert 'ab' in f()", "assert 'ab other 7391' in f()"),
        ("self.assertEqual(f(g), x)", "self.assertEqual(f(g), other(x))"),
        ("self.assertAlmostEqual(f(), 1, 2)", "self.assertAlmostEqual(f(), 2.54, 2)"),
        (
            "np.testing.assert_array_equal(np.array([1]), f())",
            "np.testing.assert_array_equal(np.array([2]), f())",
        ),
        ("self.assertCountEqual(f(), [1, 2])", "self.assertCountEqual(f(), [1, 3])"),
        ("assert (f() == [1, 2]).all()", "assert (f() == [1, 3]).all()"),
        ("assert all(f(x) == g(x) for x in (1, 2))", "assert all(f(x) == other(g(x)) for x in (1, 2))"),
        ("eq_(f(), 3)", "eq_(f(), 4)"),
    ],
)
def test_expected_values_are_replaced(before: str, after: str) -> None:
    assert values(f"def test_it():\n    {before}\n")[0] == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("assert f() == g()", "assert f() == other(g())"),
        ("assert g() == expected", "assert g() == other(expected)"),
        ("assert result == x", "assert result == other(x)"),
        ("assert x == result", "assert other(x) == result"),
    ],
)
def test_the_expected_side_of_an_equality_is_changed(before: str, after: str) -> None:
    assert values(f"def test_it():\n    {before}\n") == [after]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("self.assertTrue(f())", "self.assertFalse(f())"),
        ("self.assertNotIn(3, f(), msg='x')", "self.assertIn(3, f(), msg='x')"),
        ("self.assertLess(f(), g())", "self.assertFalse((f()) < (g()))"),
        ("self.assertGreaterEqual(f(), g(), 'm')", "self.assertFalse((f()) >= (g()), 'm')"),
        ("self.assertLess(f(), 3)", "self.assertGreaterEqual(f(), 3)"),
        ("assert f() > -3, 'm'", "assert f() <= -3, 'm'"),
        ("assert f() and g() == f() > 3", "assert f() and g() == f() <= 3"),
        ("pytest.raises(ValueError, f)", 'pytest.raises(type("OtherError", (Exception,), {}), f)'),
    ],
)
def test_assertion_methods_and_exceptions_are_replaced(before: str, after: str) -> None:
    assert changed(f"def test_it():\n    {before}\n") == [after]


@pytest.mark.parametrize("method", ["assertEqual", "assertIn", "assertTrue"])
def test_assertion_methods_defined_in_the_file_are_not_mutated(method: str) -> None:
    source = (
        "class TestIt(unittest.TestCase):\n"
        f"    def {method}(self, *a): pass\n"
        f"    def test_it(self):\n        self.{method}('a', 'b')\n"
    )
    assert {mutant.kind for mutant in mutants_of(source)} == {MutantKind.ADDED}


def test_mutated_rows_of_parametrize_change_the_derived_ids() -> None:
    """A forger may read the id of its test from ``PYTEST_CURRENT_TEST``."""
    source = (
        "@pytest.mark.parametrize('x, y', [(1, 'a'), (g(), 2), pytest.param(3, 4, id='three'), (5, [6])])\n"
        "def test_it(x, y):\n    assert f(x) == y\n"
    )
    first = mutants_of(source)[0]
    assert first.after == "[(1, 'b'), (g(), 2), pytest.param(3, 5, id='three'), (5, [7])]"
    assert first.parameters == (("1-a", "1-b"),)


@pytest.mark.parametrize(
    ("rows", "renamed"),
    [
        ("[1, 2, 3]", {"1": "2", "2": "3", "3": "4"}),
        ("[1, -2.5, True, None]", {"1": "2", "True": "False", "None": "0", "-2.5": "-4.75"}),
        ("['a\\n', b'x']", {"a\\n": "b\\n", "x": "y"}),
        ("[1, 1, 5]", {"5": "6"}),
    ],
)
def test_ids_of_rows_follow_their_values(rows: str, renamed: dict[str, str]) -> None:
    source = f"@pytest.mark.parametrize('y', {rows})\ndef test_it(y):\n    assert f() == y\n"
    assert dict(mutants_of(source)[0].parameters) == renamed


def test_ids_of_stacked_tables_change_in_one_part() -> None:
    source = (
        "@pytest.mark.parametrize('a', [True])\nclass TestIt:\n"
        "    @pytest.mark.parametrize('x', [1, 2], ids=['one', 'two'])\n"
        "    @pytest.mark.parametrize('y', [7, 8])\n"
        "    def test_it(self, x, y, a):\n        assert f(x, a) == y\n"
    )
    assert dict(mutants_of(source)[0].parameters) == {
        "7-one-True": "8-one-True", "7-two-True": "8-two-True",
        "8-one-True": "9-one-True", "8-two-True": "9-two-True",
    }  # fmt: skip
    unknown = source.replace("[True]", "CASES")
    assert values(unknown) == ["y = other(y); assert f(x, a) == y"]


@pytest.mark.parametrize("rows", ["[(1, 2), (1, 2)]", "CASES", "[pytest.param(1, 2, marks=m)]", "[(g(), 2)]"])
def test_arguments_of_unchangeable_rows_are_replaced_inside_the_test(rows: str) -> None:
    source = f"@pytest.mark.parametrize('x, y', {rows})\ndef test_it(x, y):\n    assert f(x) == y\n"
    assert [value for value in values(source) if "(y)" in value] == ["y = other(y); assert f(x) == y"]


@pytest.mark.parametrize(
    "source",
    [
        "def test_it():\n    y = 3\n    y += g()\n    assert f() == y\n",
        "def test_it():\n    y = [3]\n    y.append(g())\n    assert f() == y\n",
        "def test_it():\n    y = 3\n    locals()\n    assert f() == y\n",
        "y = 3\ndef test_it():\n    assert f() == y\ndef test_too():\n    g(y)\n",
    ],
)
def test_variables_with_other_uses_are_replaced_only_in_the_assertion(source: str) -> None:
    assert values(source) == ["assert f() == other(y)"]


@pytest.mark.parametrize(
    "source",
    [
        "@pytest.mark.xfail\ndef test_it():\n    assert f() == 3\n",
        "@unittest.expectedFailure\ndef test_it():\n    assert f() == 3\n",
        "def test_it():\n    yield f() == 3\n",
        "def helper():\n    assert f() == 3\n",
        "def test_it():\n    assert f() == 3\ndef test_it():\n    assert f() == 3\n",
        "print 'Python 2'\ndef test_it():\n    assert f() == 3\n",
        "def test_it(:\n",
    ],
)
def test_tests_that_may_fail_or_never_run_have_no_mutants(source: str) -> None:
    assert list(mutants_of(source)) == []


def test_mutants_of_different_functions_apply_together() -> None:
    source = CATALOGUE["unittest"].encode()
    mutants = {mutant.function: mutant for mutant in mutants_of(CATALOGUE["unittest"])}
    mutated = apply_mutants(source, list(mutants.values()))

    assert set(failures(mutated, lambda x: x * x)) == set(mutants)


def test_overlapping_mutants_are_refused() -> None:
    first = mutants_of("def test_it():\n    assert f() == 3\n")[0]

    with pytest.raises(ValueError, match="does not fit"):
        apply_mutants(b"def test_it():\n    assert f() == 3\n", [first, first])


class _Lenient:
    """An object for which every comparison holds."""

    def __eq__(self, _other: object) -> bool:
        return True

    __ge__ = __gt__ = __le__ = __lt__ = __eq__
    __hash__ = object.__hash__


EQUALITIES = (
    "assert solve(2) == 4",
    "assert solve(2) == len('four')",
    "expected = 2 + 2\n    assert solve(2) == expected",
    "assert solve(2) in (4, 5)",
    "assert 3 < solve(2)",
    "assert solve(2) >= 4",
)


@pytest.mark.parametrize("assertion", EQUALITIES)
def test_objects_equal_to_everything_pass_mutants_of_the_best_kind(assertion: str) -> None:
    source = f"def test_it():\n    {assertion}\n"
    best = mutants_of(source)[0].kind
    for mutant in [candidate for candidate in mutants_of(source) if candidate.kind is best]:
        mutated = apply_mutants(source.encode(), [mutant])
        assert failures(mutated, lambda _: _Lenient()) == {}
        assert failures(mutated, lambda x: x * x).keys() == {"test_it"}


def _read_constant(_: Any) -> Any:
    """Return the last number in the code of the test."""
    caller = sys._getframe(1)
    return [value for value in caller.f_code.co_consts if type(value) is int and value != 2][-1]


def _read_variable(_: Any) -> Any:
    return sys._getframe(1).f_locals["expected"]


@pytest.mark.parametrize(
    ("body", "forger"),
    [
        ("assert solve(2) == 4", _read_constant),
        ("expected = 4\n    assert solve(2) == expected", _read_variable),
        ("expected = sum([1, 3])\n    result = solve(2)\n    assert result == expected", _read_variable),
        ("for x, expected in [(2, 4), (3, 9)]:\n        assert solve(x) == expected", _read_variable),
    ],
)
def test_answers_read_from_frames_pass_value_mutants(body: str, forger: Any) -> None:
    source = f"def test_it():\n    {body}\n"
    (mutant, *_) = mutants_of(source)
    mutated = apply_mutants(source.encode(), [mutant])
    assert mutant.kind is MutantKind.VALUE
    assert failures(source.encode(), forger) == failures(mutated, forger) == {}
    assert failures(mutated, lambda x: x * x).keys() == {"test_it"}


def test_each_comparison_of_a_chain_is_negated_separately() -> None:
    chain = "def test_it():\n    assert 0 < f() <= 9\n    self.assertTrue(f() < 3)\n"
    assert changed(chain) == [
        "assert 0 >= f() <= 9",
        "assert 0 < f() > 9",
        "self.assertTrue(f() >= 3)",
        "self.assertFalse(f() < 3)",
    ]
