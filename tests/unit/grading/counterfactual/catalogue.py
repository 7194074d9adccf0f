"""Python test files, solutions that pass them, and a small runner."""

from __future__ import annotations

import asyncio
import functools
import inspect
import unittest
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from engine.grading.counterfactual.base import Mutant, MutantKind
from engine.grading.counterfactual.python.mutator import python_mutants

_HEADER = "import unittest, pytest\nimport warnings\nfrom unittest import mock\n"

CATALOGUE = {
    "constants": ("def test_it():\n    assert solve(2) == 4\n    assert 9 == solve(3) and solve(1) == 1\n"),
    "strings": (
        "def test_it():\n    assert str(solve(2)) == '4'\n    assert f'{solve(2):d}' + '' == \"\"\"4\"\"\"\n"
    ),
    "escapes": (
        "def test_it():\n    assert chr(solve(3) + 1) == '\\n'\n    assert bytes([solve(3)]) == b'\\t'\n"
    ),
    "booleans": ("def test_it():\n    assert (solve(2) == 4) is True\n    assert (solve(2) > 9) == False\n"),
    "negative": ("def test_it():\n    assert -solve(2) == -4\n    assert {1: -solve(1)} == {1: -1}\n"),
    "computed": (
        "def other(x):\n    return x * x\n"
        "def test_it():\n"
        "    assert solve(2) == other(2)\n"
        "    wanted = [other(x) for x in (1, 2)]\n"
        "    assert len(wanted) == 2 and [solve(1), solve(2)] == wanted\n"
    ),
    "texts in texts": ("def test_it():\n    assert '4' in str(solve(2))\n"),
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
    "lines": (
        "def test_it():\n    assert [\n        solve(1),  # one\n        solve(2),\n    ] == [1,\n    4]\n"
    ),
    "docstring": ("def test_it():\n    '''Squares.'''\n    assert solve(2) == 4\n"),
    "docstring alone": ("def test_it():\n    '''Nothing is tested.'''\n"),
    "one line": ("def test_it(): assert solve(2) == 4\n"),
    "compound first": (
        "def test_it():\n    # first\n    for x in (1, 2):\n        assert solve(x) == x * x\n"
    ),
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
    "variables": (
        "def test_it():\n"
        "    expected = [4, 9]\n"
        "    assert [solve(2), solve(3)] == expected, f'not {expected}'\n"
        "    wanted: int = 16\n"
        "    assert solve(4) == wanted\n"
    ),
    "module's constant": ("WANTED = {'a': 4}\ndef test_it():\n    assert {'a': solve(2)} == WANTED\n"),
    "table": (
        "def test_it():\n"
        "    cases = [(1, 1), (2, 4), (-3, 9)]\n"
        "    for x, expected in cases:\n"
        "        assert solve(x) == expected\n"
        "    for i, (x, (y, z)) in enumerate([(2, (4, 'a')), (4, (16, 'b'))]):\n"
        "        assert solve(x) == y and z == 'ab'[i]\n"
    ),
    "parameters": (
        "RUN = pytest.mark.skipif(False, reason='')\n"
        "CASES = [(1, 1), pytest.param(2, 4, id='two'), pytest.param(3, 9, marks=RUN)]\n"
        "@pytest.mark.parametrize('x, expected', CASES)\n"
        "def test_it(x, expected):\n"
        "    assert solve(x) == expected\n"
        "@pytest.mark.parametrize(('x', 'low'), [(2, False), (5, True)], ids=['two', 'five'])\n"
        "def test_named(x, low):\n"
        "    assert (solve(x) > 9) is low\n"
    ),
    "expressions": (
        "from datetime import date\nfrom textwrap import dedent\nimport collections\n"
        "def test_it():\n"
        "    assert list(range(solve(2))) == list(range(0, 4))\n"
        "    assert date(2020, 1, solve(2)) == date(2020, 1, 2 + 2)\n"
        "    assert str(solve(2)) == dedent('    4')\n"
        "    assert collections.Counter(a=solve(2)) == collections.Counter(a=4)\n"
    ),
    "approximately": (
        "def test_it():\n"
        "    assert solve(2) == pytest.approx(4.0)\n"
        "    assert [solve(2), solve(3)] == pytest.approx([4.5, 9.5], abs=0.6)\n"
    ),
    "helpers": (
        "def same(a, b, note=''):\n"
        "    '''Compares.'''\n"
        "    assert a == b, note\n"
        "def squares(x, expected):\n"
        "    x = int(x)\n"
        "    assert solve(x) == expected\n"
        "class TestIt(unittest.TestCase):\n"
        "    def verify(self, a, b):\n"
        "        self.assertEqual(a, b)\n"
        "    def test_method(self):\n"
        "        self.verify(solve(2), 4)\n"
        "def test_same():\n"
        "    same(solve(2), 4)\n"
        "    same(note='text', b=solve(3), a=9)\n"
        "def test_squares():\n"
        "    squares('2', 4)\n"
    ),
    "unittest": (
        "class TestIt(unittest.TestCase):\n"
        "    def test_equal(self):\n"
        "        self.assertEqual(solve(2), 4)\n"
        "    def test_lists(self):\n"
        "        self.assertListEqual([solve(2)], [4])\n"
        "    def test_text(self):\n"
        "        self.assertMultiLineEqual(str(solve(2)), '4')\n"
        "    def test_truth(self):\n"
        "        self.assertTrue(solve(2))\n"
        "        self.assertFalse(solve(0), msg='x')\n"
        "    def test_in(self):\n"
        "        self.assertIn(solve(2), [4])\n"
        "    def test_none(self):\n"
        "        self.assertIsNone(None)\n"
        "    def test_order(self):\n"
        "        self.assertLess(solve(2), 5)\n"
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
    """An integer whose ``!=`` contradicts its ``==``, as in a solution with unrelated faults."""

    def __ne__(self, _other: object) -> bool:
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
    errors: dict[str, BaseException] = {}
    _run(namespace, "", errors)
    return errors


def _run(namespace: Mapping[str, Any], prefix: str, errors: dict[str, BaseException]) -> None:
    for name, value in list(namespace.items()):
        if inspect.isclass(value) and name.startswith("Test"):
            make: Callable[..., Any] = value
            for method in [attribute for attribute in dir(value) if attribute.startswith("test")]:
                owner = make(method) if issubclass(value, unittest.TestCase) else make()
                _call(getattr(owner, method), f"{prefix}{name}.{method}", errors)
            _run(vars(value), f"{prefix}{name}.", errors)
        elif inspect.isfunction(value) and name.startswith("test") and not prefix:
            for test in _with_parameters(value):
                _call(test, name, errors)


def _with_parameters(function: Callable[..., Any]) -> list[Callable[[], Any]]:
    """Return one call per parameter row of a test function with at most one table."""
    marks = getattr(function, "pytestmark", [])
    if not marks:
        return [function]
    names, rows = marks[0].args
    count = len(names.split(",") if isinstance(names, str) else names)
    values = [getattr(row, "values", row) if count > 1 else (row,) for row in rows]
    return [functools.partial(function, *arguments) for arguments in values]


def _call(test: Any, name: str, errors: dict[str, BaseException]) -> None:
    try:
        with warnings.catch_warnings():
            result = test()
            if inspect.iscoroutine(result):
                asyncio.run(result)
    except (Exception, pytest.fail.Exception) as error:
        errors[name] = error


def mutants_of(source: str) -> Sequence[Mutant]:
    """Return the mutants of a file."""
    return python_mutants(source.encode(), "tests/test_it.py")


def of_kind(kind: MutantKind, source: str) -> list[str]:
    """Return the assertions of a file's mutants of a kind."""
    return [mutant.after for mutant in mutants_of(source) if mutant.kind is kind]


values = functools.partial(of_kind, MutantKind.VALUE)
changed = functools.partial(of_kind, MutantKind.CHANGED)
