"""Loops over tables written out row by row: the same tests, whose lines tell the row."""

from __future__ import annotations

import textwrap
import traceback
from contextlib import nullcontext
from typing import Any

import pytest

from engine.grading.counterfactual.python.loops import unrolled

LITERAL = """
    def test_it():
        for a, b in [(1, 1), (2, 4), (3, 9)]:
            got = f(a)
            assert got == b
"""
NAMED = """
    TABLE = (
        (1, 1),  # one: the first
        (2, 4),
        (3, 9),
    )

    def test_it():
        for a, b in TABLE:  # every row
            # after a comment
            assert (
                f(a)
                == b
            )
"""
ONE_LINE = """
    def test_it():
        for i, (a, b) in enumerate([(1, 1), (2, 4), (3, 9)], 1): assert f(a) == b
"""
ITEMS = """
    def test_it():
        for a, b in {1: 1, 2: 4, 3: 9}.items():
            with context():
                assert f(a) == b
"""
NESTED = """
    def test_it():
        for c in [0, 1]:
            for a, b in [(1, 1), (2, 4), (3, 9)]:
                assert f(a) + c == b + c
"""


def stop(content: str, wrong: int) -> int | None:
    """Return the line at which a file's test stops where the function is wrong for one number."""
    scope: dict[str, Any] = {"f": lambda a: a * a + (a == wrong), "context": nullcontext}
    exec(compile(content, "t.py", "exec"), scope)  # noqa: S102 - the files of this module
    try:
        scope["test_it"]()
    except AssertionError as error:
        return traceback.extract_tb(error.__traceback__)[-1].lineno
    return None


@pytest.mark.parametrize("source", [LITERAL, NAMED, ONE_LINE, ITEMS, NESTED])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_the_line_tells_the_row(source: str, newline: str) -> None:
    source = textwrap.dedent(source).replace("\n", newline)
    for row, wrong in enumerate((1, 2, 3)):
        line = stop(source, wrong)
        assert line is not None
        found = unrolled(source.encode(), "t.py", {line})
        assert found is not None
        content = found.content.decode()
        assert stop(content, wrong=0) is None
        assert found.rows[stop(content, wrong) or 0] == (line, row)


def test_several_loops_and_what_stands_between_them() -> None:
    source = (
        textwrap.dedent(LITERAL)
        + "\n\ndef g():\n    return 1\n"
        + textwrap.dedent(LITERAL).replace("_it", "_two")
    )
    lines = [number for number, line in enumerate(source.splitlines(), 1) if "assert" in line]
    found = unrolled(source.encode(), "t.py", lines)
    assert found is not None
    text = found.content.decode().splitlines()
    places = {place: text[line - 1].strip() for line, place in found.rows.items()}
    assert [place for place, code in places.items() if code.startswith("assert")] == [
        (line, row) for line in lines for row in range(3)
    ]
    assert [line for line in text if line.startswith(("def", "    return"))] == [
        "def test_it():", "def g():", "    return 1", "def test_two():"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "loop",
    [
        "for a in [1, 2]:\n        assert f(a) == 1\n    else:\n        assert f(0)",
        "for a in [1, 2]:\n        if f(a): break\n        assert f(a)",
        "for a in [*x]:\n        assert f(a)",
        "for a in g():\n        assert f(a)",
        "for a in [1]:\n        assert f(a)",
        "if g():\n        for a in [1, 2]:\n            assert f(a)",
        "assert f(1)",
    ],
)
def test_other_loops_stay(loop: str) -> None:
    source = f"def test_it():\n    {loop}\n"
    assert unrolled(source.encode(), "t.py", range(1, 7)) is None


def test_no_python() -> None:
    assert unrolled(b"def test_it(:\n", "t.py", {1}) is None
