"""Changed assertions: edits that turn an assertion that holds into one that does not.

Sound for every solution, not only for the gold patch: no value satisfies an assertion before and after an
edit. So constants are changed in equalities only, and other conditions are negated as a whole (``assert not
a < b``: the methods of a solution need not make ``a >= b`` its opposite).
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator, Sequence
from itertools import islice

from engine.grading.counterfactual.base import Mutant
from engine.grading.counterfactual.python import names
from engine.grading.counterfactual.python.functions import TestFunction, certain_statements, dotted
from engine.grading.counterfactual.python.literals import Edit, is_literal, literal_edits
from engine.grading.counterfactual.python.source import PythonSource

_MAX_PER_KIND = 6


def changed_mutants(source: PythonSource, function: TestFunction) -> Iterator[Mutant]:
    """Yield mutants of the assertions that every passing run executes: constants, exceptions, negations."""
    statements = list(certain_statements(function.node.body))
    for find in (_constants, _exceptions, _negations):
        edits = (edit for statement in statements for edit in find(source, statement))
        mutants = (source.changed(function.name, within, edit) for within, edit in edits)
        yield from islice((mutant for mutant in mutants if mutant is not None), _MAX_PER_KIND)


def _constants(source: PythonSource, statement: ast.stmt) -> Iterator[tuple[ast.stmt | ast.expr, Edit]]:
    match statement:
        case ast.Assert(test=test):
            for comparison in _conjuncts(test):
                for operand in _equated(comparison):
                    for edit in literal_edits(source, operand):
                        yield statement, edit
        case ast.Expr(value=ast.Call() as call):
            for operand in _equal_arguments(source, call):
                for edit in literal_edits(source, operand):
                    yield statement, edit
        case ast.With() | ast.AsyncWith():
            for context in (item.context_expr for item in statement.items):
                if isinstance(context, ast.Call) and dotted(context.func) == "self.assertNumQueries":
                    for edit in literal_edits(source, context.args[0]) if context.args else ():
                        yield context, edit


def _conjuncts(test: ast.expr) -> Iterator[ast.expr]:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        for value in test.values:
            yield from _conjuncts(value)
    else:
        yield test


def _equated(test: ast.expr) -> Iterator[ast.expr]:
    """Yield the operands of ``==``, and True and False beside ``is``."""
    if not isinstance(test, ast.Compare) or _is_loose(test):
        return
    operands = [test.left, *test.comparators]
    for place, operand in enumerate(operands):
        beside = test.ops[max(0, place - 1) : place + 1]
        decides = (ast.Eq, ast.Is) if _is_bool(operand) else ast.Eq
        if any(isinstance(operator, decides) for operator in beside):
            yield operand


def _is_bool(operand: ast.expr) -> bool:
    return isinstance(operand, ast.Constant) and isinstance(operand.value, bool)


def _is_loose(expression: ast.expr) -> bool:
    used = (getattr(node, "id", "") or getattr(node, "attr", "") for node in ast.walk(expression))
    return any(names.LOOSE.search(name) for name in used)


def _equal_arguments(source: PythonSource, call: ast.Call) -> Iterator[ast.expr]:
    """Yield the arguments of an assertion that two values are equal."""
    arguments = call.args[:2]
    if len(arguments) < 2 or any(isinstance(argument, ast.Starred) for argument in arguments):
        return
    if any(map(_is_loose, arguments)):
        return
    owner, _, name = dotted(call.func).rpartition(".")
    if owner == "self" and name in names.EQUALITIES:
        yield from arguments
    elif owner == "self" and name == "assertIs":
        yield from filter(_is_bool, arguments)
    elif name in names.ARRAY_EQUALITIES and _is_of_numpy(source.tree, owner, name):
        if call.keywords or len(call.args) != 2:
            return
        # A scalar equals every element of an empty array, whatever it is.
        yield from (
            one for one in arguments if isinstance(one, ast.List | ast.Tuple) and one.elts and is_literal(one)
        )


def _is_of_numpy(tree: ast.Module, owner: str, name: str) -> bool:
    if owner:
        return owner in ("np.testing", "numpy.testing")
    return any(
        isinstance(node, ast.ImportFrom)
        and node.module == "numpy.testing"
        and any(alias.name == name and alias.asname is None for alias in node.names)
        for node in tree.body
    )


def _exceptions(source: PythonSource, statement: ast.stmt) -> Iterator[tuple[ast.stmt | ast.expr, Edit]]:
    calls: Sequence[ast.expr] = ()
    match statement:
        case ast.With() | ast.AsyncWith():
            calls = [item.context_expr for item in statement.items]
        case ast.Expr(value=ast.Call() as call) if len(call.args) > 1:
            calls = [call]
    for context in calls:
        if not isinstance(context, ast.Call) or not context.args:
            continue
        name, expected = dotted(context.func), context.args[0]
        others = (
            names.UNRELATED_EXCEPTIONS
            if name in names.RAISES
            else names.UNRELATED_WARNINGS
            if name in names.WARNS
            else ()
        )
        for other in others:
            if _is_unrelated(expected, other):
                yield context, (source.start(expected), source.end(expected), other)


def _is_unrelated(expected: ast.expr, other: str) -> bool:
    if isinstance(expected, ast.Tuple):
        return bool(expected.elts) and all(_is_unrelated(element, other) for element in expected.elts)
    name = dotted(expected).rpartition(".")[2] if isinstance(expected, ast.Name | ast.Attribute) else ""
    if not name[:1].isupper() or name in names.BROAD or name.isupper():
        return False
    known, unrelated = getattr(builtins, name, None), getattr(builtins, other)
    return not (isinstance(known, type) and (issubclass(known, unrelated) or issubclass(unrelated, known)))


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
            swapped = _other_operator(source, test)
            return swapped or (start, start, "not ")
        case ast.Compare() | ast.Call() | ast.Name() | ast.Attribute() | ast.Subscript():
            return start, start, "not "
    return start, end, f"not ({text})"


def _other_operator(source: PythonSource, test: ast.Compare) -> Edit | None:
    first, last = source.end(test.left), source.start(test.comparators[0])
    between = source.content[first:last].decode()
    found = re.fullmatch(r"([\s)]*\s)(is\s+not|is|not\s+in|in)(\s[\s(]*|\(\s*)", between)
    if found is None:
        return None
    words = " ".join(found[2].split())
    other = {"is": "is not", "is not": "is", "in": "not in", "not in": "in"}[words]
    place = first + len(found[1].encode())
    return place, place + len(found[2].encode()), other


def _opposite_call(source: PythonSource, call: ast.Call, function: ast.Attribute) -> Edit | None:
    """Return the edit that turns an assertion method's call into its exact opposite."""
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return None
    if {keyword.arg for keyword in call.keywords} - names.TOLERANCES:
        return None
    name = function.attr
    end = source.end(function)
    if name in names.OPPOSITES:
        return end - len(name.encode()), end, names.OPPOSITES[name]
    if name in names.OPPOSITES_OF_TWO and len(call.args) == 2 and not call.keywords:
        return end - len(name), end, names.OPPOSITES_OF_TWO[name]
    if name in names.OPERATORS and len(call.args) in (2, 3):
        left, right = (source.text(argument) for argument in call.args[:2])
        rest = source.content[source.end(call.args[1]) : source.end(call)].decode()
        negated = f"self.assertFalse(({left}) {names.OPERATORS[name]} ({right}){rest}"
        return source.start(call), source.end(call), negated
    return None
