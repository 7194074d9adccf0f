"""Operands of equalities in a test function: expressions that decide whether it passes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from engine.grading.counterfactual.python import names
from engine.grading.counterfactual.python.functions import dotted
from engine.grading.counterfactual.python.source import PythonSource

_RELATIVE, _ABSOLUTE = 1e-6, 1e-12
"""Tolerances of ``pytest.approx``."""
_PLACES = 7


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Difference up to which two numbers count as equal."""

    absolute: float = 0.0
    relative: float = 0.0

    def of(self, value: complex) -> float:
        """Return the largest accepted difference from a value."""
        return max(self.absolute, self.relative * abs(value))


EXACT = Tolerance()


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand of an equality.

    Args:
        node: the operand.
        within: smallest statement or expression to show as evidence.
        tolerance: accepted difference of numbers.
        boolean_only: whether only True and False may be changed, as in comparisons by ``is``.
        other: the other operand; None if there are several, or a tolerance.
        is_second: whether it comes after the other one.
    """

    node: ast.expr
    within: ast.stmt | ast.expr
    tolerance: Tolerance = EXACT
    boolean_only: bool = False
    other: ast.expr | None = None
    is_second: bool = False


def operands(source: PythonSource, statement: ast.stmt) -> Iterator[Operand]:
    """Yield the operands that must be equal for a statement to succeed."""
    match statement:
        case ast.Assert(test=test):
            for comparison in conjuncts(test):
                yield from _compared(source, _inside(comparison), statement)
        case ast.Expr(value=ast.Call(args=[test, *_]) as call) if dotted(call) == "self.assertTrue":
            if not source.defines("assertTrue"):
                for comparison in conjuncts(test):
                    yield from _compared(source, _inside(comparison), statement)
        case ast.Expr(value=ast.Call() as call):
            yield from _arguments(source, call, statement)


def conjuncts(test: ast.expr) -> Iterator[ast.expr]:
    """Yield the parts of a condition that holds only if all of them do."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        for value in test.values:
            yield from conjuncts(value)
    else:
        yield test


def _inside(test: ast.expr) -> ast.expr:
    """Return the comparison inside ``all(…)`` or ``(…).all()``; other conditions unchanged."""
    match test:
        case ast.Call(func=ast.Attribute(value=ast.Compare() as compared, attr="all"), args=[], keywords=[]):
            return compared if any(map(_is_list, [compared.left, *compared.comparators])) else test
        case ast.Call(
            func=ast.Name(id="all"),
            args=[ast.GeneratorExp(elt=comparison, generators=[ast.comprehension(iter=elements, ifs=[])])],
        ) if _is_list(elements):
            return comparison
    return test


def _is_list(node: ast.expr) -> bool:
    """Return whether a node is a list of literals with at least one element."""
    return isinstance(node, ast.List | ast.Tuple) and bool(node.elts) and _is_literal(node)


def _compared(source: PythonSource, test: ast.expr, statement: ast.stmt) -> Iterator[Operand]:
    """Yield the operands of ``==``, and those of ``is`` for True and False."""
    if not isinstance(test, ast.Compare):
        return
    sides = [test.left, *test.comparators]
    loose = [side for side in sides if is_loose(side)]
    for place, side in enumerate(sides):
        operators = test.ops[max(0, place - 1) : place + 1]
        equal = any(isinstance(operator, ast.Eq) for operator in operators)
        if not equal and not any(isinstance(operator, ast.Is) for operator in operators):
            continue
        if not loose:
            other = sides[1 - place] if len(sides) == 2 else None
            yield Operand(side, statement, boolean_only=not equal, other=other, is_second=place == 1)
        elif loose == [side] and equal and (approximated := _approximated(source, side)) is not None:
            yield Operand(approximated[0], statement, approximated[1])


def is_loose(expression: ast.expr) -> bool:
    """Return whether an expression may be equal to several values."""
    used = (getattr(node, "id", "") or getattr(node, "attr", "") for node in ast.walk(expression))
    return any(names.LOOSE.search(name) for name in used)


def _approximated(source: PythonSource, call: ast.expr) -> tuple[ast.expr, Tolerance] | None:
    """Return the argument of ``approx``, with its tolerance; None for anything else."""
    if not isinstance(call, ast.Call) or dotted(call.func) not in ("approx", "pytest.approx"):
        return None
    if len(call.args) != 1 or is_loose(call.args[0]):
        return None
    if isinstance(call.func, ast.Name) and not _is_imported(source.tree, "approx", "pytest"):
        return None
    options = {keyword.arg: _number(keyword.value) for keyword in call.keywords}
    if not options.keys() <= {"rel", "abs"} or None in options.values():
        return None
    relative, absolute = options.get("rel", _RELATIVE), options.get("abs", _ABSOLUTE)
    return call.args[0], Tolerance(absolute=absolute or 0.0, relative=relative or 0.0)


def _number(node: ast.expr) -> float | None:
    value = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
    return float(value) if isinstance(value, int | float) else None


def _arguments(source: PythonSource, call: ast.Call, statement: ast.stmt) -> Iterator[Operand]:
    """Yield the arguments of an assertion that two values are equal."""
    first = call.args[:2]
    if len(first) < 2 or any(isinstance(value, ast.Starred) for value in first):
        return
    if any(map(is_loose, first)):
        return
    owner, _, name = dotted(call.func).rpartition(".")
    if source.defines(name):
        return
    method = owner == "self" and name in names.EQUALITIES
    function = not owner and name in names.FUNCTION_EQUALITIES
    if method or (function and not _is_of_numpy(source.tree, owner, name)):
        if has_message_alone(call):
            yield Operand(first[0], statement, other=first[1])
            yield Operand(first[1], statement, other=first[0], is_second=True)
    elif owner == "self" and name == "assertIs":
        yield from (Operand(value, statement, boolean_only=True) for value in first)
    elif owner == "self" and name in names.ALMOST_EQUALITIES:
        if (tolerance := _almost(call)) is not None:
            yield from (Operand(value, statement, tolerance) for value in first)
    elif name in names.ARRAY_EQUALITIES and _is_of_numpy(source.tree, owner, name):
        if call.keywords or len(call.args) != 2:
            return
        # A scalar equals every element of an empty array, whatever it is.
        for value in first:
            inner = value.args[0] if isinstance(value, ast.Call) and len(value.args) == 1 else value
            if _is_list(inner) and (inner is value or dotted(value) in ("np.array", "numpy.array")):
                yield Operand(inner, statement)


def has_message_alone(call: ast.Call) -> bool:
    """Return whether a call has two arguments and perhaps a message, but no tolerance or option."""
    if {keyword.arg for keyword in call.keywords} - {"msg"}:
        return False
    return len(call.args) == 2 or (len(call.args) == 3 and _is_text(call.args[2]))


def _is_text(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=str()) | ast.JoinedStr():
            return True
        case ast.BinOp(left=inner, op=ast.Add() | ast.Mod()):
            return _is_text(inner)
        case ast.Call(func=ast.Attribute(value=inner, attr="format")):
            return _is_text(inner)
    return False


def _almost(call: ast.Call) -> Tolerance | None:
    """Return the tolerance of ``assertAlmostEqual``; None if it is not constant."""
    options = {keyword.arg: _number(keyword.value) for keyword in call.keywords if keyword.arg != "msg"}
    if len(call.args) > 2:
        options["places"] = _number(call.args[2])
    if not options:
        options["places"] = _PLACES
    if set(options) == {"places"} and (places := options["places"]) is not None:
        return Tolerance(absolute=10.0**-places)
    if set(options) == {"delta"} and (delta := options["delta"]) is not None:
        return Tolerance(absolute=delta)
    return None


def _is_of_numpy(tree: ast.Module, owner: str, name: str) -> bool:
    if owner:
        return owner in ("np.testing", "numpy.testing")
    return _is_imported(tree, name, "numpy.testing")


def _is_imported(tree: ast.Module, name: str, module: str) -> bool:
    return any(
        isinstance(node, ast.ImportFrom)
        and node.module == module
        and any(alias.name == name and alias.asname is None for alias in node.names)
        for node in tree.body
    )


def _is_literal(node: ast.expr) -> bool:
    """Return whether a node consists of literals only."""
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return False
    return True
