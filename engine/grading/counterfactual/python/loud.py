"""Loud mutants: assertions that nobody would write, for tests without quiet ones.

Expected exceptions become rare ones, and other conditions are negated as a whole (``assert not a < b``: the
methods of a solution need not make ``a >= b`` its opposite).
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from engine.grading.counterfactual.base import Mutant, MutantKind, some_of_each_line
from engine.grading.counterfactual.python import names
from engine.grading.counterfactual.python.functions import TestFunction, certain_statements, dotted
from engine.grading.counterfactual.python.literals import Edit
from engine.grading.counterfactual.python.operands import has_message_alone
from engine.grading.counterfactual.python.quiet import exception_contexts, other_operator
from engine.grading.counterfactual.python.source import PythonSource


def loud_mutants(source: PythonSource, function: TestFunction) -> Iterator[Mutant]:
    """Yield changed exceptions and negated conditions of the assertions that every passing run executes."""
    statements = list(certain_statements(source, function.node.body, literal=lambda node: node))
    for find in (_exceptions, _negations):
        edits = (edit for statement in statements for edit in find(source, statement))
        mutants = (source.mutant(function.name, within, [edit], MutantKind.CHANGED) for within, edit in edits)
        yield from some_of_each_line(mutants)


def _exceptions(source: PythonSource, statement: ast.stmt) -> Iterator[tuple[ast.stmt | ast.expr, Edit]]:
    for context in exception_contexts(source, statement):
        name, expected = dotted(context.func), context.args[0]
        if source.defines(name.rpartition(".")[2]):
            continue
        parts = expected.elts if isinstance(expected, ast.Tuple) else [expected]
        if not parts or not all(map(_is_narrow_class, parts)):
            continue
        builtin = all(_builtin(source, part) is not None for part in parts)
        for other in _others(name, builtin=builtin):
            if all(_is_unrelated(_builtin(source, part), other) for part in parts):
                yield context, (source.start(expected), source.end(expected), other)


def _others(name: str, *, builtin: bool) -> tuple[str, ...]:
    """Return what a context manager may expect instead of built-in classes, or of those of a solution."""
    if name in names.RAISES:
        return names.UNRELATED_EXCEPTIONS if builtin else (names.NEW_EXCEPTION,)
    if name in names.WARNS:
        return names.UNRELATED_WARNINGS if builtin else (names.NEW_WARNING,)
    return ()


def _is_narrow_class(expected: ast.expr) -> bool:
    name = dotted(expected).rpartition(".")[2] if isinstance(expected, ast.Name | ast.Attribute) else ""
    return name[:1].isupper() and name not in names.BROAD and not name.isupper()


def _builtin(source: PythonSource, expected: ast.expr) -> type | None:
    """Return the built-in class that an expression names; None for others."""
    if not isinstance(expected, ast.Name) or source.constants.bound[expected.id]:
        return None
    found = getattr(builtins, expected.id, None)
    return found if isinstance(found, type) else None


def _is_unrelated(known: type | None, other: str) -> bool:
    unrelated = getattr(builtins, other, None)
    if known is None or not isinstance(unrelated, type):
        return True
    return not (issubclass(known, unrelated) or issubclass(unrelated, known))


def _negations(source: PythonSource, statement: ast.stmt) -> Iterator[tuple[ast.stmt | ast.expr, Edit]]:
    match statement:
        case ast.Assert(test=test):
            yield statement, _negated(source, test)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="self")) as function) as call):
            edit = _opposite_call(source, call, function)
            if edit is not None:
                yield statement, edit


def _negated(source: PythonSource, test: ast.expr) -> Edit:
    """Return the edit that negates a condition exactly."""
    start, end, text = source.start(test), source.end(test), source.text(test)
    match test:
        case ast.UnaryOp(op=ast.Not()):
            return start, start + len(text) - len(text[len("not") :].lstrip(" ")), ""
        case ast.Compare(ops=[ast.In() | ast.NotIn() | ast.Is() | ast.IsNot()]):
            return other_operator(source, test) or (start, start, "not ")
        case ast.Compare() | ast.Call() | ast.Name() | ast.Attribute() | ast.Subscript():
            return start, start, "not "
    return start, end, f"not ({text})"


def _opposite_call(source: PythonSource, call: ast.Call, function: ast.Attribute) -> Edit | None:
    """Return the edit that turns an assertion method's call into its exact opposite."""
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return None
    if {keyword.arg for keyword in call.keywords} - names.TOLERANCES:
        return None
    name = function.attr
    if source.defines(name):
        return None
    end = source.end(function)
    if name in names.OPPOSITES:
        return end - len(name.encode()), end, names.OPPOSITES[name]
    if name in names.OPPOSITES_OF_TWO and len(call.args) == 2 and not call.keywords:
        return end - len(name), end, names.OPPOSITES_OF_TWO[name]
    if name in names.OPERATORS and has_message_alone(call):
        left, right = (source.text(argument) for argument in call.args[:2])
        rest = source.content[source.end(call.args[1]) : source.end(call)].decode()
        negated = f"self.assertFalse(({left}) {names.OPERATORS[name]} ({right}){rest}"
        return source.start(call), source.end(call), negated
    return None
