"""Mutants that negate a condition exactly, or expect another exception.

Conditions are negated as a whole (``assert not (a < b)``): the methods of a solution need not make ``a >= b``
the opposite. They do beside a number, where the negation would let objects pass unseen that are less and
greater than everything. No exception of a solution is an instance of a class that the test makes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

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


_REVERSED = {ast.Lt: ">=", ast.LtE: ">", ast.Gt: "<=", ast.GtE: "<", ast.NotEq: "=="}
_WRITTEN = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.NotEq: "!=", ast.Eq: "==",
    ast.In: "in", ast.NotIn: "not in", ast.Is: "is", ast.IsNot: "is not",
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
        case ast.Assert(test=test) if edits := list(_reversed(source, test)):
            yield from ((statement, edit) for edit in edits)
        case ast.Assert(test=test):
            yield statement, (source.start(test), source.end(test), f"not ({source.text(test)})")
        case ast.Expr(
            value=ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr="assertTrue"), args=[test, *_])
        ) if not source.defines("assertTrue") and (edits := list(_reversed(source, test))):
            yield from ((statement, edit) for edit in edits)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="self")) as method) as call):
            if (edit := _opposite(source, call, method)) is not None:
                yield statement, edit
    for context in _raising(source, statement):
        if dotted(context.func) in names.RAISES and context.args:
            expected = context.args[0]
            yield context, (source.start(expected), source.end(expected), _NEW_EXCEPTION)


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
    if name in names.OPPOSITES:
        return end - len(name.encode()), end, names.OPPOSITES[name]
    if name in names.REVERSED and any(map(_is_number, call.args[:2])):
        return end - len(name.encode()), end, names.REVERSED[name]
    if name in names.OPERATORS and has_message_alone(call):
        left, right = (source.text(argument) for argument in call.args[:2])
        rest = source.content[source.end(call.args[1]) : source.end(call)].decode()
        negated = f"self.assertFalse(({left}) {names.OPERATORS[name]} ({right}){rest}"
        return source.start(call), source.end(call), negated
    return None


def _reversed(source: PythonSource, test: ast.expr) -> Iterator[Edit]:
    """Yield edits that reverse one comparison with a number, in a condition of which all parts must hold."""
    for part in conjuncts(test):
        if not isinstance(part, ast.Compare):
            continue
        sides = [part.left, *part.comparators]
        for place, operator in enumerate(part.ops):
            if type(operator) not in _REVERSED or not any(map(_is_number, sides[place : place + 2])):
                continue
            words = [_WRITTEN[type(one)] for one in part.ops]
            words[place] = _REVERSED[type(operator)]
            texts = [f"({source.text(side)})" for side in sides]
            text = texts[0] + "".join(f" {word} {text}" for word, text in zip(words, texts[1:], strict=True))
            yield source.start(part), source.end(part), text


def _is_number(node: ast.expr) -> bool:
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _is_number(operand)
        case ast.Constant(value=value):
            return isinstance(value, int | float)
    return False
