"""Equalities that a test asserts through a helper of its file: ``same(f(x), 3)``.

A helper is a module's function or a class's method whose name nothing else in the file binds. Its parameter
counts where the helper certainly compares it, and uses it for nothing else.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from engine.grading.counterfactual.python.functions import certain_statements, dotted, own_nodes
from engine.grading.counterfactual.python.operands import EXACT, Operand, Tolerance, is_loose, operands
from engine.grading.counterfactual.python.source import PythonSource, is_introspected


def asserted(source: PythonSource, statement: ast.stmt) -> Iterator[Operand]:
    """Yield the operands that a statement compares, by itself or through a helper of the file."""
    yield from operands(source, statement)
    match statement:
        case ast.Expr(value=ast.Call() as call) if (helper := _helper(source, call)) is not None:
            yield from _through(source, helper, call, statement)


def compared_names(function: ast.AST, find: Callable[[ast.stmt], Iterable[Operand]]) -> dict[int, Tolerance]:
    """Return the names, by identity, that are operands of equalities or shown in messages of assertions.

    Args:
        find: returns the operands that a statement compares.
    """
    found: dict[int, Tolerance] = {}
    for node in ast.walk(function):
        shown: list[ast.expr] = []
        match node:
            case ast.Assert(msg=ast.expr() as message):
                shown = [message]
            case ast.Call(keywords=keywords) if dotted(node) == "self.subTest":
                shown = [keyword.value for keyword in keywords]
        found.update((id(name), EXACT) for one in shown for name in ast.walk(one))
        if isinstance(node, ast.Assert | ast.Expr):
            found.update((id(operand.node), operand.tolerance) for operand in find(node))
    return found


def _through(
    source: PythonSource, helper: ast.FunctionDef, call: ast.Call, statement: ast.stmt
) -> Iterator[Operand]:
    """Yield the arguments that a helper certainly compares."""
    given = _arguments(helper, call)
    if any(map(is_loose, given.values())) or is_introspected(helper):
        return
    compared = compared_names(helper, lambda node: operands(source, node))
    seen: set[str] = set()
    for inner in certain_statements(source, helper.body, literal=lambda node: node):
        for operand in operands(source, inner):
            name = operand.node.id if isinstance(operand.node, ast.Name) else ""
            uses = [one for one in ast.walk(helper) if isinstance(one, ast.Name) and one.id == name]
            if name in seen or name not in given or any(id(one) not in compared for one in uses):
                continue
            seen.add(name)
            allowed = [compared[id(one)] for one in uses]
            tolerance = Tolerance(
                absolute=max(one.absolute for one in allowed), relative=max(one.relative for one in allowed)
            )
            yield replace(operand, node=given[name], within=statement, tolerance=tolerance, other=None)


def _helper(source: PythonSource, call: ast.Call) -> ast.FunctionDef | None:
    """Return the function of the file that a call certainly runs; None for others."""
    match call.func:
        case ast.Name(id=name):
            owner = ""
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            owner = _class_of(source, call)
        case _:
            return None
    found = source.functions.get(name)
    if found is None or name.startswith("test"):
        return None
    defined_in, helper = found
    if defined_in not in source.ancestry(owner) or helper.decorator_list:
        return None
    if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in own_nodes(helper.body)):
        return None
    return helper


def _class_of(source: PythonSource, call: ast.Call) -> str:
    """Return the name of the module's class in which a call is; a name of none outside of classes."""
    for name, node in source.classes.items():
        if node.lineno <= call.lineno <= (node.end_lineno or 0):
            return name
    return "self"


def _arguments(helper: ast.FunctionDef, call: ast.Call) -> Mapping[str, ast.expr]:
    """Return parameter → argument of a call; nothing where some are not known."""
    parameters = [one.arg for one in (*helper.args.posonlyargs, *helper.args.args)]
    if isinstance(call.func, ast.Attribute):
        del parameters[:1]
    if len(call.args) > len(parameters) or any(isinstance(one, ast.Starred) for one in call.args):
        return {}
    given = dict(zip(parameters, call.args, strict=False))
    for keyword in call.keywords:
        if keyword.arg is None:
            return {}
        given[keyword.arg] = keyword.value
    return given
