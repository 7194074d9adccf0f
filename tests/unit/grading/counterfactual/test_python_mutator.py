"""Mutants of Python tests: each fails for every solution that passes the true test, and only they differ."""

from __future__ import annotations

import asyncio
import inspect
import unittest
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from engine.grading.counterfactual.base import Mutant, MutantKind, apply_mutants
from engine.grading.counterfactual.languages import mutator_of

_HEADER = "import unittest, pytest\nimport warnings\nfrom unittest import mock\n"

CATALOGUE = {
    "constants": ("def test_it():\n    assert solve(2) == 4\n    assert 9 == solve(3) and solve(1) == 1\n"),
    "nested": (
        "def test_it():\n    assert [solve(2), {'a': (solve(3), 'text')}] == [4, {'a': (9, 'text')}]\n"
    ),
    "strings": (
        "def test_it():\n    assert str(solve(2)) == '4'\n    assert f'{solve(2):d}' + '' == \"\"\"4\"\"\"\n"
    ),
    "escapes": (
        "def test_it():\n    assert chr(solve(3) + 1) == '\\n'\n    assert bytes([solve(3)]) == b'\\t'\n"
    ),
    "empty": ("def test_it():\n    assert 'x'[solve(1):] == ''\n"),
    "booleans": ("def test_it():\n    assert (solve(2) == 4) is True\n    assert (solve(2) > 9) == False\n"),
    "negative": ("def test_it():\n    assert -solve(2) == -4\n    assert {1: -solve(1)} == {1: -1}\n"),
    "sets": ("def test_it():\n    assert {solve(2), solve(3)} == {4, 9}\n"),
    "chain": ("def test_it():\n    assert 4 == solve(2) == solve(-2)\n    assert 1 < solve(2) == 4\n"),
    "order": ("def test_it():\n    assert solve(2) > 3\n    assert 3 <= solve(2) <= 5\n"),
    "membership": ("def test_it():\n    assert solve(2) in (4, 5)\n    assert (solve(2)) not in [3]\n"),
    "identity": ("def test_it():\n    x = solve(2)\n    assert x is not None\n    assert None is(None)\n"),
    "truth": (
        "def test_it():\n    assert solve(2)\n    assert not solve(0)\n    assert not(solve(0) or solve(0))\n"
    ),
    "either": (
        "def test_it():\n    assert solve(2) == 4 or solve(2) == 5\n    assert (y := solve(3)) and y\n"
    ),
    "message": ("def test_it():\n    assert solve(2) == 4, 'solve(2) == 5'\n"),
    "lines": (
        "def test_it():\n"
        "    assert [\n"
        "        solve(1),  # one\n"
        "        solve(2),\n"
        "    ] == [\n"
        "        1,\n"
        "        4,\n"
        "    ]\n"
    ),
    "docstring": ("def test_it():\n    '''Squares.'''\n    assert solve(2) == 4\n"),
    "docstring alone": ("def test_it():\n    '''Nothing is tested.'''\n"),
    "one line": ("def test_it(): assert solve(2) == 4\n"),
    "compound first": (
        "def test_it():\n    # first\n    for x in (1, 2):\n        assert solve(x) == x * x\n"
    ),
    "decorated first": ("def test_it():\n\t@staticmethod\n\tdef f(): return solve(2)\n\tassert f() == 4\n"),
    "unicode": (
        "# Ünïcödé ✓\ndef test_it():\n    'größe'; assert solve(2) == 4; assert 'ä' + str(solve(2)) == 'ä4'\n"
    ),
    "crlf": ("def test_it():\r\n    x = solve(2)\r\n    assert x == 4\r\n    assert str(x) == '''4'''\r\n"),
    "loop": (
        "def test_it():\n"
        "    for x, y in [(1, 1), (2, 4)]:\n"
        "        assert solve(x) == y\n"
        "        assert solve(3) == 9\n"
    ),
    "raises": (
        "def test_it():\n"
        "    with pytest.raises((TypeError, ValueError), match='unsupported'):\n"
        "        solve(None)\n"
    ),
    "raises call": ("def test_it():\n    pytest.raises(TypeError, solve, None)\n    assert solve(2) == 4\n"),
    "warns": (
        "def test_it():\n"
        "    with pytest.warns(UserWarning):\n"
        "        warnings.warn('x', UserWarning)\n"
        "        assert solve(2) == 4\n"
    ),
    "patched": (
        "def test_it():\n"
        "    with mock.patch('os.getcwd', return_value='/'), open('/dev/null'):\n"
        "        assert solve(2) == 4\n"
    ),
    "finally": ("def test_it():\n    try:\n        assert solve(2) == 4\n    finally:\n        solve(1)\n"),
    "async": ("async def test_it():\n    assert solve(2) == 4\n"),
    "method": (
        "class TestIt:\n    class TestInner:\n        def test_it(self):\n            assert solve(2) == 4\n"
    ),
    "unittest": (
        "class TestIt(unittest.TestCase):\n"
        "    def test_equal(self):\n"
        "        self.assertEqual(solve(2), 4)\n"
        "        self.assertEqual(solve(2),\n"
        "            4, 'm')\n"
        "    def test_lists(self):\n"
        "        self.assertListEqual([solve(2)], [4])\n"
        "        self.assertDictEqual({1: solve(2)}, {1: 4})\n"
        "    def test_sets(self):\n"
        "        self.assertSetEqual({solve(2)}, {4})\n"
        "        self.assertTupleEqual((solve(2),), (4,))\n"
        "    def test_text(self):\n"
        "        self.assertMultiLineEqual(str(solve(2)), '4')\n"
        "        self.assertNotEqual(solve(2), 5)\n"
        "    def test_truth(self):\n"
        "        self.assertTrue(solve(2))\n"
        "        self.assertFalse(solve(0), msg='x')\n"
        "    def test_in(self):\n"
        "        self.assertIn(solve(2), [4])\n"
        "        self.assertIs(solve(2) == 4, True)\n"
        "    def test_none(self):\n"
        "        self.assertIsNone(None)\n"
        "        self.assertIsInstance(solve(2), object)\n"
        "    def test_order(self):\n"
        "        self.assertLess(solve(2), 5)\n"
        "        self.assertGreaterEqual(solve(2), 4)\n"
        "    def test_regex(self):\n"
        "        self.assertRegex(str(solve(2)), '4')\n"
        "        self.assertAlmostEqual(solve(2), 4.0, places=3)\n"
        "    def test_raises(self):\n"
        "        with self.assertRaises(TypeError):\n"
        "            solve(None)\n"
        "        self.assertRaisesRegex(TypeError, '.', solve, None)\n"
        "    def test_sub(self):\n"
        "        for x in range(3):\n"
        "            with self.subTest(x=x):\n"
        "                self.assertEqual(solve(x), x * x)\n"
    ),
}


class _Odd(int):
    """An integer whose comparisons beyond ``==`` contradict it, as in a solution with faults elsewhere."""

    def __ne__(self, _other: object) -> bool:
        return True

    def __lt__(self, _other: object) -> bool:
        return True

    def __le__(self, _other: object) -> bool:
        return True

    def __gt__(self, _other: object) -> bool:
        return True

    def __ge__(self, _other: object) -> bool:
        return True

    __hash__ = int.__hash__


SOLUTIONS: dict[str, Callable[[Any], Any]] = {
    "square": lambda x: x * x,
    "power": lambda x: x**2,
    "subclass": lambda x: _Odd(x * x),
}


def failures(source: bytes, solve: Any) -> dict[str, BaseException]:
    """Return the exceptions of a file's test functions and methods, by name."""
    namespace: dict[str, Any] = {"solve": solve}
    exec(compile(_HEADER.encode() + source, "test_file.py", "exec"), namespace)
    found: dict[str, BaseException] = {}
    _run(namespace, "", found)
    return found


def _run(namespace: Mapping[str, Any], prefix: str, found: dict[str, BaseException]) -> None:
    for name, value in list(namespace.items()):
        if inspect.isclass(value) and name.startswith("Test"):
            make: Callable[..., Any] = value
            for method in [one for one in dir(value) if one.startswith("test")]:
                owner = make(method) if issubclass(value, unittest.TestCase) else make()
                _call(getattr(owner, method), f"{prefix}{name}.{method}", found)
            _run(vars(value), f"{prefix}{name}.", found)
        elif inspect.isfunction(value) and name.startswith("test") and not prefix:
            _call(value, name, found)


def _call(test: Any, name: str, found: dict[str, BaseException]) -> None:
    try:
        with warnings.catch_warnings():
            result = test()
            if inspect.iscoroutine(result):
                asyncio.run(result)
    except (Exception, pytest.fail.Exception) as error:
        found[name] = error


def mutants_of(source: str) -> Sequence[Mutant]:
    mutator = mutator_of("tests/test_it.py")
    assert mutator is not None
    return mutator.mutants(source.encode(), "tests/test_it.py")


@pytest.mark.parametrize("solution", SOLUTIONS)
@pytest.mark.parametrize("case", CATALOGUE)
def test_every_mutant_fails_for_every_solution_that_passes(case: str, solution: str) -> None:
    source, solve = CATALOGUE[case].encode(), SOLUTIONS[solution]
    passing = failures(source, solve)
    mutants = [mutant for mutant in mutants_of(CATALOGUE[case]) if mutant.function not in passing]

    assert mutants or solution == "subclass"
    for mutant in mutants:
        assert set(failures(apply_mutants(source, [mutant]), solve)) == {*passing, mutant.function}, mutant


def changed(source: str) -> list[str]:
    """Return the changed assertions of a file."""
    return [mutant.after for mutant in mutants_of(source) if mutant.kind is MutantKind.CHANGED]


@pytest.mark.parametrize(
    "body",
    [
        "if x:\n        assert f() == 3",
        "for a in x:\n        assert f() == 3",
        "while x:\n        assert f() == 3",
        "try:\n        assert f() == 3\n    except AssertionError:\n        pass",
        "try:\n        assert f() == 3\n    finally:\n        return",
        "with pytest.raises(Exception):\n        assert f() == 3",
        "with suppress(AssertionError):\n        assert f() == 3",
        "def inner():\n        assert f() == 3\n    inner()",
        "if f() is None:\n        return\n    assert f() == 3",
        "for a in [1, 2]:\n        if f():\n            break\n        assert f() == 3",
        "for a in [*x]:\n        assert f() == 3",
        "with pytest.raises(error):\n        f()",
        "with pytest.raises(Exception):\n        f()",
        "with pytest.raises(ArithmeticError if f() else ValueError):\n        f()",
        "self.assertCountEqual(f(), [1, 2])",
        "self.assertContains(f(), 'text', 3)",
        "helper(f(), 3)",
    ],
)
def test_assertions_that_need_not_decide_are_left_alone(body: str) -> None:
    assert changed(f"def test_it():\n    {body}\n") == []
    assert mutants_of(f"def test_it():\n    {body}\n"), "a false assertion can be added to every test"


@pytest.mark.parametrize(
    "condition",
    [
        "f() == approx(3)",
        "pytest.approx(3.0) == f()",
        "f() == [mock.ANY, 3]",
        "isclose(f(), 3) == 1",
        "f() > 3",
        "f() != 3",
        "3 in f()",
        "f() == 3 or g() == 3",
        "f() == g(3)",
        "f() == [*g(), 3]",
        "f() == {g(): 3, h(): 4}",
        "f() == {**g(), 'a': 3, **h()}",
        "f() == {3, g()}",
        "f() == None",
    ],
)
def test_constants_are_changed_where_equality_decides_and_else_the_condition_is_negated(
    condition: str,
) -> None:
    assert changed(f"def test_it():\n    assert {condition}\n") in (
        [f"assert not {condition}"],
        [f"assert not ({condition})"],
        [f"assert {condition.replace(' in ', ' not in ')}"],
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("assert f() == 3", "assert f() == 4"),
        ("assert f() == 9", "assert f() == 8"),
        ("assert f() == 250", "assert f() == 350"),
        ("assert f() == 0.5", "assert f() == 0.6"),
        ("assert f() == 'cab'", "assert f() == 'cae'"),
        ("assert f() == 'a\\n'", "assert f() == 'd\\n'"),
        ("assert f() == ''", "assert f() == 'x'"),
        ("assert f() is True", "assert f() is False"),
        ("self.assertEqual(f(), 'v1')", "self.assertEqual(f(), 'v4')"),
        ("np.testing.assert_equal(f(), [1.5, 2])", "np.testing.assert_equal(f(), [2.5, 2])"),
    ],
)
def test_constants_come_first(before: str, after: str) -> None:
    assert changed(f"def test_it():\n    {before}\n")[0] == after


def test_exceptions_come_before_negations() -> None:
    source = (
        "def test_it():\n    with pytest.raises(ValueError, match='x') as e:\n        f()\n    assert e > 3\n"
    )

    assert changed(source) == [
        "pytest.raises(BufferError, match='x')",
        "pytest.raises(ReferenceError, match='x')",
        "assert not e > 3",
    ]


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
        "\0",
    ],
)
def test_what_may_fail_or_never_runs_has_no_mutants(source: str) -> None:
    assert list(mutants_of(source)) == []


def test_all_mutants_of_different_functions_apply_together_and_other_bytes_stay() -> None:
    source = CATALOGUE["unittest"].encode()
    mutants = {mutant.function: mutant for mutant in mutants_of(CATALOGUE["unittest"])}
    mutated = apply_mutants(source, list(mutants.values()))

    assert set(failures(mutated, lambda x: x * x)) == set(mutants)


def test_mutants_that_overlap_are_refused() -> None:
    first = mutants_of("def test_it():\n    assert f() == 3\n")[0]

    with pytest.raises(ValueError, match="does not fit"):
        apply_mutants(b"def test_it():\n    assert f() == 3\n", [first, first])
