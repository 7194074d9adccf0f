"""False and true assertions added to test functions, in the style of the function's own."""

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
    for left, _, wrong in rng.sample(_comparisons(rng), _SHAPES):
        yield _added(source, function, MutantKind.ADDED, left, wrong)


def neutral_mutant(source: PythonSource, function: TestFunction) -> Mutant:
    """Return the mutant with one more assertion at the top of the body, which passes whatever is tested."""
    rng = random.Random(f"{source.path}:{function.name}:neutral")
    left, right, _ = rng.choice(_comparisons(rng))
    return _added(source, function, MutantKind.TRUE, left, right)


def _added(source: PythonSource, function: TestFunction, kind: MutantKind, left: str, right: str) -> Mutant:
    place, before, after = _place(source, function.node)
    statement = f"self.assertEqual({left}, {right})" if function.uses_self else f"assert {left} == {right}"
    return Mutant(
        path=source.path,
        function=function.name,
        line=source.line(place),
        kind=kind,
        before="",
        after=statement,
        start=place,
        end=place,
        replacement=f"{before}{statement}{after}",
    )


def _comparisons(rng: random.Random) -> list[tuple[str, str, str]]:
    """Return expressions, each with one of the same value and one of another."""
    one, other, third = rng.sample(range(2, 60), 3)
    word, second = rng.sample(_WORDS, 2)
    product, longer = one * other, word.replace(word[0], f"{second[0]}x")
    return [
        (f"[{one}, {other}, {third}][1]", f"{other}", f"{other + rng.randint(1, 4)}"),
        (f'"{word} {second}".split()', f'["{word}", "{second}"]', f'["{word}", "{second}s"]'),
        (f'"{word}".upper()', f'"{word.upper()}"', f'"{second.upper()}"'),
        (f'{{"{word}": {one}}}.get("{word}")', f"{one}", f"{other}"),
        (f"{one} * {other}", f"{product}", f"{product + rng.randint(1, 9)}"),
        (f'"{word}".replace("{word[0]}", "{second[0]}x")', f'"{longer}"', f'"{word}"'),
        (f"({one}, {other})", f"({one}, {other})", f"({one}, {third})"),
        (f'"{word}-{second}".partition("-")[2]', f'"{second}"', f'"{word}"'),
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
