"""Tests in other words, which refuse neighbours of the expected value: true ones, and false ones beside them.

``assert f(x) == 125`` becomes ``assert [126, 124, 127, 125, 125].count(f(x)) == 2``: 125 is there twice, its
neighbours once. A result that is equal to 125 and to none of its neighbours passes both; an object that is
equal to its neighbours as well, or to everything, passes the first alone. A false test wants another value in
the same words, beside the neighbours of that one: it reads as the true one of an author who expected it.
Tests without such an equality get one more assertion, which is true of literals: who compares their text with
the one that is known finds another.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from engine.grading.counterfactual.base import Mutant, MutantKind, some_of_each_line
from engine.grading.counterfactual.python import names
from engine.grading.counterfactual.python.added import neutral_mutant
from engine.grading.counterfactual.python.constants import certainly_differ
from engine.grading.counterfactual.python.expectations import Expectation, Expectations
from engine.grading.counterfactual.python.functions import TestFunction, dotted
from engine.grading.counterfactual.python.helpers import compared_alone
from engine.grading.counterfactual.python.literals import Edit, Shown, literal_edits
from engine.grading.counterfactual.python.operands import EXACT, Operand
from engine.grading.counterfactual.python.quiet import Candidate, quiet_candidates
from engine.grading.counterfactual.python.source import PythonSource
from engine.grading.counterfactual.python.test_cases import has_plain_equality

_MAX_MUTANTS = 12
_MAX_OPERANDS = 100
_MAX_NEIGHBOURS = 6
_MAX_BYTES = 400


def true_mutants(source: PythonSource, function: TestFunction) -> Iterator[Mutant]:
    """Yield the true mutants of a function, all of which may be applied together."""
    strict = (
        source.mutant(function.name, one.statement, one.edits(source), MutantKind.TRUE)
        for one in _equalities(source, function)
    )
    found = [mutant for mutant in strict if mutant is not None]
    yield from found or [neutral_mutant(source, function)]


def near_mutants(source: PythonSource, function: TestFunction) -> Iterator[Mutant]:
    """Yield the quiet mutants of equalities in the words of the true ones, the least conspicuous first."""
    equalities = _equalities(source, function)
    if not equalities:
        return
    mutants = (_near(source, function, equalities, one) for one in quiet_candidates(source, function))
    yield from some_of_each_line(mutants)


def _near(
    source: PythonSource, function: TestFunction, equalities: Sequence[_Equality], candidate: Candidate
) -> Mutant | None:
    """Return the mutant of a candidate that changes what equalities expect; None for others."""
    changed = [one for one in equalities if one.is_changed(source, candidate.edits)]
    if not changed:
        return None
    elsewhere = [edit for edit in candidate.edits if not any(one.contains(source, edit) for one in changed)]
    edits = [*elsewhere, *(edit for one in changed for edit in one.edits(source, candidate.edits))]
    first, last = min(edit[0] for edit in edits), max(edit[1] for edit in edits)
    between = (one for one in equalities if one not in changed)
    edits += [edit for one in between for edit in one.edits(source) if first <= edit[0] and edit[1] <= last]
    return source.mutant(
        function.name,
        candidate.within,
        edits,
        MutantKind.NEAR,
        candidate.parameters,
        asserted=candidate.asserted,
    )


@dataclass(frozen=True, slots=True)
class _Equality:
    """An assertion that a result is equal to a constant.

    Args:
        statement: the assertion.
        expected: its operand with the expected value: the constant, or a variable that holds it.
        result: its other operand.
        cell: the constant.
        left: the first of both.
        method: the assertion method that compares them.
    """

    statement: ast.stmt
    expected: ast.expr
    result: ast.expr
    cell: ast.expr
    left: ast.expr
    method: ast.Attribute | None

    def contains(self, source: PythonSource, edit: Edit) -> bool:
        """Return whether an edit lies in the assertion."""
        return source.start(self.statement) <= edit[0] and edit[1] <= source.end(self.statement)

    def is_changed(self, source: PythonSource, edits: Sequence[Edit]) -> bool:
        """Return whether edits change what is expected, or the assertion."""
        first, last = source.start(self.cell), source.end(self.cell)
        return any((first <= edit[0] and edit[1] <= last) or self.contains(source, edit) for edit in edits)

    def edits(self, source: PythonSource, changes: Sequence[Edit] = ()) -> list[Edit]:
        """Return the edits to the other words, after changes of what is expected."""
        expected, result, value = (
            source.edited(source.start(node), source.end(node), changes)
            for node in (self.expected, self.result, self.cell)
        )
        listed = ", ".join([*_neighbours(source, value), expected, expected])
        right = self.result if self.left is self.expected else self.expected
        found: list[Edit] = [
            (source.start(self.left), source.end(self.left), f"[{listed}].count({result})"),
            (source.start(right), source.end(right), "2"),
        ]
        if self.method is not None:
            end = source.end(self.method)
            found.append((end - len(self.method.attr), end, "assertEqual"))
        return found


def _equalities(source: PythonSource, function: TestFunction) -> list[_Equality]:
    """Return a function's assertions that a result is equal to a constant in the function."""
    found: dict[int, _Equality] = {}
    has_methods = has_plain_equality(source, function.name)
    for operand, expectation in islice(Expectations(source, function), _MAX_OPERANDS):
        if id(operand.within) not in found and len(found) < _MAX_MUTANTS:
            one = _equality(source, function, operand, expectation, has_methods=has_methods)
            if one is not None:
                found[id(operand.within)] = one
    return [*found.values()]


def _equality(
    source: PythonSource,
    function: TestFunction,
    operand: Operand,
    expectation: Expectation,
    *,
    has_methods: bool,
) -> _Equality | None:
    if len(expectation.cells) != 1 or expectation.table is not None or expectation.boolean_only:
        return None
    cell, method = expectation.cells[0], None
    match operand.within:
        case ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right])):
            pass
        case ast.Expr(value=ast.Call(func=ast.Attribute() as called, args=[left, right, *_]) as call) if (
            has_methods and dotted(call).startswith("self.") and called.attr in names.PLAIN_EQUALITIES
        ):
            method = called
        case ast.Expr(value=ast.Call() as call) if (pair := compared_alone(source, call)) is not None:
            left, right = pair
            if isinstance(call.func, ast.Attribute) and not has_methods:
                return None
        case _:
            return None
    if expectation.tolerance != EXACT or (method is not None and source.defines("assertEqual")):
        return None
    result = right if operand.node is left else left
    size = source.end(cell) - source.start(cell)
    inside = source.start(function.node) <= source.start(cell) < source.end(function.node)
    if not inside or size > _MAX_BYTES or _is_constant(source, result):
        return None
    if not isinstance(operand.within, ast.stmt) or not _neighbours(source, source.text(cell)):
        return None
    return _Equality(operand.within, operand.node, result, cell, left, method)


def _neighbours(source: PythonSource, text: str) -> list[str]:
    """Return the source texts of values near a constant, which differ from it and from each other.

    They follow from its text alone: those of a false test say nothing of the true value.
    """
    found: dict[str, Any] = {}
    try:
        alone, node = source.expression(text)
        start, end = alone.start(node), alone.end(node)
        alone.constants.value(node)
        for one in literal_edits(alone, node, beside=Shown.of(node)):
            if len(found) == _MAX_NEIGHBOURS:
                break
            near = alone.edited(start, end, [one.edit])
            value = alone.constants.value(source.expression(near)[1])
            if all(certainly_differ(value, other) for other in found.values()):
                found[near] = value
    except ValueError:
        return []
    return [*found]


def _is_constant(source: PythonSource, node: ast.expr) -> bool:
    try:
        source.constants.value(node)
    except ValueError:
        return False
    return True
