"""False assertions added to test functions, in the style of the function's own."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator

from engine.grading.counterfactual.base import Mutant, MutantKind
from engine.grading.counterfactual.python.functions import TestFunction
from engine.grading.counterfactual.python.source import PythonSource

_SHAPES = 3
_WORDS = ("alpha", "north", "value", "item", "red", "first", "user", "left", "total", "page", "name", "data")


def added_mutants(source: PythonSource, function: TestFunction) -> Iterator[Mutant]:
    """Yield mutants with one more assertion at the top of the body; it fails whatever is tested.

    Both sides are computed from literals by methods and operators, since names may be shadowed.
    """
    rng = random.Random(f"{source.path}:{function.name}")
    place, before, after = _place(source, function.node)
    for left, right in rng.sample(_comparisons(rng), _SHAPES):
        statement = (
            f"self.assertEqual({left}, {right})" if function.uses_self else f"assert {left} == {right}"
        )
        yield Mutant(
            path=source.path,
            function=function.name,
            line=source.line(place),
            kind=MutantKind.ADDED,
            before="",
            after=statement,
            start=place,
            end=place,
            replacement=f"{before}{statement}{after}",
        )


def _comparisons(rng: random.Random) -> list[tuple[str, str]]:
    """Return pairs of expressions with different values."""
    one, other, third = rng.sample(range(2, 60), 3)
    word, second = rng.sample(_WORDS, 2)
    return [
        (f"[{one}, {other}, {third}][1]", f"{other + rng.randint(1, 4)}"),
        (f'"{word} {second}".split()', f'["{word}", "{second}s"]'),
        (f'"{word}".upper()', f'"{second.upper()}"'),
        (f'{{"{word}": {one}}}.get("{word}")', f"{other}"),
        (f"{one} * {other}", f"{one * other + rng.randint(1, 9)}"),
        (f'"{word}".replace("{word[0]}", "{second[0]}x")', f'"{word}"'),
        (f"({one}, {other})", f"({one}, {third})"),
        (f'"{word}-{second}".partition("-")[2]', f'"{word}"'),
    ]


def _place(source: PythonSource, node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[int, str, str]:
    """Return where the statement goes, and the text before and after it."""
    first, *others = node.body
    if ast.get_docstring(node, clean=False) is not None:
        if not others:
            return source.end(first), "; ", ""
        first = others[0]
    decorators = getattr(first, "decorator_list", [])
    start = min(source.start(part) for part in [*decorators, first])
    line_start = source.line_start(min(part.lineno for part in [*decorators, first]))
    indent = source.content[line_start:start].decode().removesuffix("@")
    if indent.strip():
        return start, "", "; "
    newline = "\r\n" if source.content[:line_start].endswith(b"\r\n") else "\n"
    return line_start, indent, newline
