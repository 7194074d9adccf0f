"""Test functions of a Python file, and those of their statements that every passing run executes."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from engine.grading.counterfactual.python import names
from engine.grading.counterfactual.python.source import PythonSource

Function = ast.FunctionDef | ast.AsyncFunctionDef
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


@dataclass(frozen=True, slots=True)
class TestFunction:
    """A test function or method."""

    __test__ = False
    name: str
    """Dotted name, e.g. ``TestMean.test_mean``."""
    node: Function
    uses_self: bool
    """Whether its class has the assertion methods of ``unittest``."""
    class_decorators: tuple[ast.expr, ...] = ()


def test_functions(tree: ast.Module) -> list[TestFunction]:
    """Return the functions that test runners collect; expected failures and ambiguous names are left out."""
    functions = list(_collect(tree.body))
    counts = Counter(function.name for function in functions)
    return [function for function in functions if counts[function.name] == 1 and _is_plain(function.node)]


test_functions.__test__ = False  # type: ignore[attr-defined]


def _collect(
    body: Sequence[ast.stmt],
    prefix: str = "",
    *,
    has_methods: bool = False,
    decorators: tuple[ast.expr, ...] = (),
) -> Iterator[TestFunction]:
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if node.name.startswith("test"):
                    yield TestFunction(f"{prefix}{node.name}", node, has_methods, decorators)
            case ast.ClassDef():
                yield from _collect(
                    node.body,
                    f"{prefix}{node.name}.",
                    has_methods=_is_test_case(node),
                    decorators=(*decorators, *node.decorator_list),
                )
            case ast.If() | ast.Try():
                inner = [*node.body, *node.orelse]
                yield from _collect(inner, prefix, has_methods=has_methods, decorators=decorators)


def _is_test_case(node: ast.ClassDef) -> bool:
    inherits = any(dotted(base).endswith("TestCase") for base in node.bases)
    return inherits or any(
        isinstance(child, ast.Attribute) and child.attr in ("assertEqual", "assertTrue", "assertRaises")
        for child in ast.walk(node)
    )


def _is_plain(node: Function) -> bool:
    decorators = [dotted(decorator).lower() for decorator in node.decorator_list]
    if any(word in name for name in decorators for word in names.NOT_RUN):
        return False
    return not any(isinstance(child, ast.Yield | ast.YieldFrom) for child in own_nodes(node.body))


def certain_statements(
    source: PythonSource,
    body: Sequence[ast.stmt],
    *,
    literal: Callable[[ast.expr], ast.expr],
    in_loop: bool = False,
) -> Iterator[ast.stmt]:
    """Yield the statements that run whenever the function ends normally, and whose exceptions leave it.

    Bodies of conditions, handlers and unknown context managers are left out, as is everything after a
    possible ``return``. The body of a loop over a non-empty literal counts, as it runs at least once.

    Args:
        literal: returns the certain value of a name, and every other expression unchanged.
    """
    for node in body:
        yield node
        match node:
            case ast.With() | ast.AsyncWith():
                if all(is_transparent(source, item.context_expr) for item in node.items):
                    yield from certain_statements(source, node.body, literal=literal, in_loop=in_loop)
            case ast.For() if _runs_once(literal(node.iter), literal):
                yield from certain_statements(source, node.body, literal=literal, in_loop=True)
            case ast.Try(handlers=[]) if not _may_leave(node.finalbody, in_loop=True):
                yield from certain_statements(source, node.body, literal=literal, in_loop=in_loop)
        if _may_leave([node], in_loop=in_loop):
            return


def is_transparent(source: PythonSource, context: ast.expr) -> bool:
    """Return whether a context manager propagates every exception of its body."""
    name = dotted(context.func) if isinstance(context, ast.Call) else ""
    return name in names.TRANSPARENT and not source.defines(name.rpartition(".")[2])


def _runs_once(iterated: ast.expr, literal: Callable[[ast.expr], ast.expr]) -> bool:
    """Return whether a loop over the expression has at least one iteration."""
    match iterated:
        case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
            return any(not isinstance(element, ast.Starred) for element in elements)
        case ast.Call(func=ast.Name(id="range"), args=[ast.Constant(value=int(count))], keywords=[]):
            return count > 0
        case ast.Call(func=ast.Name(id="enumerate"), args=[inner, *_]):
            return _runs_once(literal(inner), literal)
        case ast.Call(func=ast.Attribute(value=ast.Dict(keys=keys), attr="items"), args=[], keywords=[]):
            return bool(keys) and None not in keys
    return False


def _may_leave(body: Sequence[ast.stmt], *, in_loop: bool) -> bool:
    """Return whether statements may end the function, or a loop's current iteration, without an exception."""
    return any(
        isinstance(node, ast.Return) or (in_loop and isinstance(node, ast.Break | ast.Continue))
        for node in own_nodes(body)
    )


def own_nodes(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes below statements that belong to the same scope."""
    stack = list(reversed(body))
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, _SCOPES):
            stack += reversed(list(ast.iter_child_nodes(node)))


def dotted(node: ast.expr) -> str:
    """Return the dotted name of an expression or of the function that it calls; empty without one."""
    match node:
        case ast.Call(func=function):
            return dotted(function)
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            owner = dotted(value)
            return f"{owner}.{name}" if owner else ""
    return ""
