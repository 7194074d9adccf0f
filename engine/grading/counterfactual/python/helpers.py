"""Equalities that a test asserts through a helper of its file: ``same(f(x), 3)``.

A helper is a module's function or a class's method whose name nothing else in the file binds. Its parameter
counts if the helper certainly compares it, and uses it for nothing else.
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
    """Return id of a name's node → tolerance, for operands of equalities and names in assertion messages.

    Args:
        find: returns the operands that a statement compares.
    """
    tolerances: dict[int, Tolerance] = {}
    for node in ast.walk(function):
        shown: list[ast.expr] = []
        match node:
            case ast.Assert(msg=ast.expr() as message):
                shown = [message]
            case ast.Call(keywords=keywords) if dotted(node) == "self.subTest":
                shown = [keyword.value for keyword in keywords]
        tolerances.update((id(name), EXACT) for expression in shown for name in ast.walk(expression))
        if isinstance(node, ast.Assert | ast.Expr):
            tolerances.update((id(operand.node), operand.tolerance) for operand in find(node))
    return tolerances


def _through(
    source: PythonSource, helper: ast.FunctionDef, call: ast.Call, statement: ast.stmt
) -> Iterator[Operand]:
    """Yield the arguments that a helper certainly compares."""
    arguments = _arguments(helper, call)
    if any(map(is_loose, arguments.values())) or is_introspected(helper):
        return
    compared = compared_names(helper, lambda node: operands(source, node))
    seen: set[str] = set()
    for inner in certain_statements(source, helper.body, literal=lambda node: node):
        for operand in operands(source, inner):
            name = operand.node.id if isinstance(operand.node, ast.Name) else ""
            uses = [node for node in ast.walk(helper) if isinstance(node, ast.Name) and node.id == name]
            if name in seen or name not in arguments or any(id(use) not in compared for use in uses):
                continue
            seen.add(name)
            accepted = [compared[id(use)] for use in uses]
            tolerance = Tolerance(
                absolute=max(item.absolute for item in accepted),
                relative=max(item.relative for item in accepted),
            )
            yield replace(operand, node=arguments[name], within=statement, tolerance=tolerance, other=None)


def _helper(source: PythonSource, call: ast.Call) -> ast.FunctionDef | None:
    """Return the function of the file that a call certainly runs; None for other calls."""
    match call.func:
        case ast.Name(id=name):
            owner = ""
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            owner = _class_of(source, call)
        case _:
            return None
    definition = source.functions.get(name)
    if definition is None or name.startswith("test"):
        return None
    defined_in, helper = definition
    if defined_in not in source.ancestry(owner) or helper.decorator_list:
        return None
    if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in own_nodes(helper.body)):
        return None
    return helper


def _class_of(source: PythonSource, call: ast.Call) -> str:
    """Return the name of the module's class that contains a call; without one ``self``, no class's name."""
    for name, node in source.classes.items():
        if node.lineno <= call.lineno <= (node.end_lineno or 0):
            return name
    return "self"


def _arguments(helper: ast.FunctionDef, call: ast.Call) -> Mapping[str, ast.expr]:
    """Return parameter → argument of a call; empty if some are unknown."""
    parameters = [argument.arg for argument in (*helper.args.posonlyargs, *helper.args.args)]
    if isinstance(call.func, ast.Attribute):
        del parameters[:1]
    if len(call.args) > len(parameters) or any(isinstance(value, ast.Starred) for value in call.args):
        return {}
    arguments = dict(zip(parameters, call.args, strict=False))
    for keyword in call.keywords:
        if keyword.arg is None:
            return {}
        arguments[keyword.arg] = keyword.value
    return arguments
