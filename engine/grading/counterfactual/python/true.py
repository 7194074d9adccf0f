"""Mutants for decoys: tests in other words that refuse neighbours of the expected value, or want one of them.

``assert f(x) == 125`` becomes ``assert [124, 126, 125].index(f(x)) == 2``: the place of the first value that
equals the result. A result that is equal to 125 and to none of its neighbours passes both. An object that is
equal to its neighbours, or to everything, passes the first alone, and ``assert f(x) in [124, 126]``, which no
solution passes. Tests without such an equality get one more assertion, which is true of literals: who
compares their text with the one that is known finds another.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import islice

from engine.grading.counterfactual.base import Mutant, MutantKind
from engine.grading.counterfactual.python import names
from engine.grading.counterfactual.python.added import neutral_mutant
from engine.grading.counterfactual.python.expectations import Expectation, Expectations
from engine.grading.counterfactual.python.functions import TestFunction, dotted
from engine.grading.counterfactual.python.literals import Edit, Shown, literal_edits
from engine.grading.counterfactual.python.operands import EXACT, Operand
from engine.grading.counterfactual.python.source import PythonSource
from engine.grading.counterfactual.python.test_cases import has_plain_equality

_MAX_MUTANTS = 12
_MAX_OPERANDS = 100
_MAX_NEIGHBOURS = 6
_MAX_BYTES = 400
_ATOMS = (
    ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set,
)  # fmt: skip
"""Expressions that need no parentheses beside an operator."""


def true_mutants(source: PythonSource, function: TestFunction) -> Iterator[Mutant]:
    """Yield the true mutants of a function, all of which may be applied together."""
    strict = list(_mutants(source, function, MutantKind.TRUE))
    yield from strict or [neutral_mutant(source, function)]


def near_mutants(source: PythonSource, function: TestFunction) -> Iterator[Mutant]:
    """Yield the mutants of a function that want a neighbour of an expected value."""
    return _mutants(source, function, MutantKind.NEAR)


def _mutants(source: PythonSource, function: TestFunction, kind: MutantKind) -> Iterator[Mutant]:
    """Yield a mutant for each equality with a constant in a function."""
    seen: set[int] = set()
    found = 0
    has_methods = has_plain_equality(source, function.name)
    for operand, expectation in islice(Expectations(source, function), _MAX_OPERANDS):
        if id(operand.within) in seen or found == _MAX_MUTANTS:
            continue
        if isinstance(operand.within, ast.Expr) and not has_methods:
            continue
        edits = _edits(source, operand, expectation, kind)
        mutant = source.mutant(function.name, operand.within, edits, kind) if edits else None
        if mutant is not None:
            seen.add(id(operand.within))
            found += 1
            yield mutant


def _edits(source: PythonSource, operand: Operand, found: Expectation, kind: MutantKind) -> Sequence[Edit]:
    """Return the edits of an equality; nothing where its expected value is not constant."""
    if len(found.cells) != 1 or found.table is not None or found.boolean_only or found.tolerance != EXACT:
        return ()
    neighbours = _neighbours(source, found.cells[0], operand)
    called: ast.Attribute | None = None
    match operand.within:
        case ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]) as test):
            edit = source.start(test), source.end(test)
        case ast.Expr(value=ast.Call(func=ast.Attribute() as method, args=[left, right, *_]) as call):
            if not dotted(call).startswith("self.") or method.attr not in names.PLAIN_EQUALITIES:
                return ()
            edit, called = (source.start(left), source.end(right)), method
        case _:
            return ()
    result = right if operand.node is left else left
    if not neighbours or _is_constant(source, result):
        return ()
    shown, listed = _as_operand(source, result), ", ".join(neighbours)
    if kind is MutantKind.NEAR:
        name, sides = "assertIn", (shown, " in ", f"[{listed}]")
    else:
        place = f"[{listed}, {source.text(operand.node)}].index({shown})"
        name, sides = "assertEqual", (place, " == ", str(len(neighbours)))
    if called is None:
        return [(*edit, "".join(sides))]
    if source.defines(name):
        return ()
    end = source.end(called)
    return [(end - len(called.attr), end, name), (*edit, f"{sides[0]}, {sides[2]}")]


def _as_operand(source: PythonSource, node: ast.expr) -> str:
    """Return the source text of an expression as an operand of any operator."""
    text = source.text(node)
    return text if isinstance(node, _ATOMS) else f"({text})"


def _neighbours(source: PythonSource, cell: ast.expr, operand: Operand) -> list[str]:
    """Return the source texts of values near a constant one, none of them equal to it."""
    start, end = source.start(cell), source.end(cell)
    if end - start > _MAX_BYTES or not _is_constant(source, cell):
        return []
    texts: dict[str, None] = {}
    for one in literal_edits(source, cell, beside=Shown.of(operand.within)):
        first, last, replacement = one.edit
        content = source.content
        texts[(content[start:first] + replacement.encode() + content[last:end]).decode()] = None
    return [*texts][:_MAX_NEIGHBOURS]


def _is_constant(source: PythonSource, node: ast.expr) -> bool:
    try:
        source.constants.value(node)
    except ValueError:
        return False
    return True
