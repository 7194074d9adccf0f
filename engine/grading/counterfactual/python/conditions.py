"""Mutants that negate a condition exactly, or expect another exception.

Conditions are negated as a whole (``assert not (a < b)``): the methods of a solution need not make ``a >= b``
the opposite. Beside a number they do, and there objects for which every comparison holds pass the opposite.
No exception of a solution is an instance of a class that the test makes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from engine.grading.counterfactual.base import Mutant, MutantKind, some_of_each_line
from engine.grading.counterfactual.python import names
from engine.grading.counterfactual.python.functions import (
    TestFunction,
    certain_statements,
    dotted,
    is_transparent,
)
from engine.grading.counterfactual.python.operands import has_message_alone
from engine.grading.counterfactual.python.source import Edit, PythonSource

_NEW_EXCEPTION = 'type("OtherError", (Exception,), {})'
_OPPOSITE_ORDERS: Mapping[type[ast.cmpop], str] = {
    ast.Lt: ">=", ast.LtE: ">", ast.Gt: "<=", ast.GtE: "<", ast.NotEq: "==",
}  # fmt: skip
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
            yield statement, (source.start(test), source.end(test), _negated(source, test))
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="self")) as method) as call):
            if (edit := _opposite(source, call, method)) is not None:
                yield statement, edit
    for context in _raising(source, statement):
        if dotted(context.func) in names.RAISES and context.args:
            expected = context.args[0]
            yield context, (source.start(expected), source.end(expected), _NEW_EXCEPTION)


def _negated(source: PythonSource, test: ast.expr) -> str:
    """Return the source text of the opposite of a condition."""
    match test:
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if _has_literal(left, right):
            if (other := _OPPOSITE_ORDERS.get(type(operator))) is not None:
                return f"({source.text(left)}) {other} ({source.text(right)})"
    return f"not ({source.text(test)})"


def _has_literal(*sides: ast.expr) -> bool:
    """Return whether one of two operands is a number or a string."""
    numbers = (side.operand if isinstance(side, ast.UnaryOp) else side for side in sides)
    return any(isinstance(one, ast.Constant) and isinstance(one.value, int | float | str) for one in numbers)


def _raising(source: PythonSource, statement: ast.stmt) -> Iterator[ast.Call]:
    """Yield the calls in a statement that may expect an exception: no unknown context manager is around."""
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
