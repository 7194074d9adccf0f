"""Mutants that negate a condition exactly, or expect another exception.

Conditions are negated as a whole (``assert not (a < b)``), as a solution's methods need not make ``a >= b``
the opposite. Comparisons with a literal are reversed instead, which catches objects for which all comparisons
hold. A solution cannot raise the expected exception: its class is created in the test.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

from engine.grading.counterfactual.base import Mutant, MutantKind, some_of_each_line
from engine.grading.counterfactual.python import names
from engine.grading.counterfactual.python.functions import (
    TestFunction,
    certain_statements,
    dotted,
    is_transparent,
)
from engine.grading.counterfactual.python.operands import conjuncts, has_message_alone
from engine.grading.counterfactual.python.source import Edit, PythonSource

_NEW_EXCEPTION = 'type("OtherError", (Exception,), {})'
_ORDER = re.compile(r"[<>]=?|!=")
_REVERSED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "!=": "=="}
_OPPOSITE_METHODS = {
    "assertLess": "assertGreaterEqual", "assertLessEqual": "assertGreater",
    "assertGreater": "assertLessEqual", "assertGreaterEqual": "assertLess", "assertNotEqual": "assertEqual",
}  # fmt: skip


def condition_mutants(source: PythonSource, function: TestFunction) -> Iterator[Mutant]:
    """Yield changed conditions and exceptions of the assertions that every passing run executes."""
    statements = certain_statements(source, function.node.body, literal=lambda node: node)
    edits = (edit for statement in statements for edit in _edits(source, statement))
    yield from some_of_each_line(
        source.mutant(function.name, within, [edit], MutantKind.CHANGED) for within, edit in edits
    )


def _edits(source: PythonSource, statement: ast.stmt) -> Iterator[tuple[ast.stmt | ast.expr, Edit]]:
    match statement:
        case ast.Assert(test=test):
            whole = source.start(test), source.end(test), f"not ({source.text(test)})"
            yield from ((statement, edit) for edit in [*_reversed(source, test)] or [whole])
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="self")) as method) as call):
            if method.attr == "assertTrue" and call.args and not source.defines("assertTrue"):
                yield from ((statement, edit) for edit in _reversed(source, call.args[0]))
            if (edit := _opposite(source, call, method)) is not None:
                yield statement, edit
    for context in _raising(source, statement):
        if dotted(context.func) in names.RAISES and context.args:
            expected = context.args[0]
            yield context, (source.start(expected), source.end(expected), _NEW_EXCEPTION)


def _reversed(source: PythonSource, test: ast.expr) -> Iterator[Edit]:
    """Yield edits that each reverse one comparison with a literal, in a conjunction."""
    for part in conjuncts(test):
        sides = [part.left, *part.comparators] if isinstance(part, ast.Compare) else []
        for left, right in pairwise(sides):
            between = source.content[source.end(left) : source.start(right)].decode()
            operator = _ORDER.search(between)
            if operator is not None and _has_literal(left, right):
                start = source.end(left) + operator.start()
                yield start, start + len(operator[0]), _REVERSED[operator[0]]


def _has_literal(*sides: ast.expr) -> bool:
    """Return whether one of two operands is a number or a string."""
    operands = (side.operand if isinstance(side, ast.UnaryOp) else side for side in sides)
    return any(
        isinstance(node, ast.Constant) and isinstance(node.value, int | float | str) for node in operands
    )


def _raising(source: PythonSource, statement: ast.stmt) -> Iterator[ast.Call]:
    """Yield the calls in a statement that may expect an exception, outside of unknown context managers."""
    match statement:
        case ast.With() | ast.AsyncWith():
            for context in (item.context_expr for item in statement.items):
                if isinstance(context, ast.Call):
                    yield context
                if not is_transparent(source, context):
                    return
        case ast.Expr(value=ast.Call() as call) if len(call.args) > 1:
            yield call


def _opposite(source: PythonSource, call: ast.Call, method: ast.Attribute) -> Edit | None:
    """Return the edit that turns an assertion method's call into its exact opposite."""
    name = method.attr
    if source.defines(name) or any(isinstance(argument, ast.Starred) for argument in call.args):
        return None
    if {keyword.arg for keyword in call.keywords} - names.TOLERANCES:
        return None
    end = source.end(method)
    if name in _OPPOSITE_METHODS and _has_literal(*call.args[:2]):
        return end - len(name), end, _OPPOSITE_METHODS[name]
    if name in names.OPPOSITES:
        return end - len(name.encode()), end, names.OPPOSITES[name]
    if name in names.OPERATORS and has_message_alone(call):
        left, right = (source.text(argument) for argument in call.args[:2])
        rest = source.content[source.end(call.args[1]) : source.end(call)].decode()
        negated = f"self.assertFalse(({left}) {names.OPERATORS[name]} ({right}){rest}"
        return source.start(call), source.end(call), negated
    return None
