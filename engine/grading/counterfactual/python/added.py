"""False assertions added to test functions, which catch early exits and forged reports."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from engine.grading.counterfactual.base import Mutant, MutantKind
from engine.grading.counterfactual.python.functions import TestFunction
from engine.grading.counterfactual.python.source import PythonSource

_FALSE = (
    ("[3, 7, 5][1]", "5"),
    ('"north page".split()', '["north", "pages"]'),
    ('{"total": 4}.get("total")', "6"),
)
"""Pairs of unequal expressions, made of literals only because names may be shadowed."""


def added_mutants(source: PythonSource, function: TestFunction) -> Iterator[Mutant]:
    """Yield mutants with a false assertion at the top of the body."""
    place, before, after = _place(source, function.node)
    for left, right in _FALSE:
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


def _place(source: PythonSource, node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[int, str, str]:
    """Return the offset at which to insert the statement, and the text before and after it."""
    first, *others = node.body
    if ast.get_docstring(node, clean=False) is not None:
        if not others:
            return source.end(first), "; ", ""
        first = others[0]
    return source.before(first)
