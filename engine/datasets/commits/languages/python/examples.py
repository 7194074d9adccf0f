"""Code of a failing test without fixtures, with its imports and definitions."""

from __future__ import annotations

import ast
import builtins
import textwrap
from collections.abc import Collection, Sequence
from functools import partial

from engine.datasets.commits.languages.python.definitions import (
    find_definition,
    first_line,
    parse,
    split_lines,
)
from engine.errors import HostileInputError
from engine.isolation import SOURCE_LIMITS, call_isolated

_BUILTINS = frozenset(dir(builtins))


def example(text: str, test: str) -> str:
    """Return the code of a test that runs by itself, read in a process of its own; empty without one."""
    names = test.partition("[")[0].split("::")[1:]
    try:
        return call_isolated(partial(_body, text, names), SOURCE_LIMITS)
    except HostileInputError:
        return ""


def _body(text: str, names: Sequence[str]) -> str:
    tree = parse(text)
    if tree is None:
        return ""
    function = find_definition(tree, names)
    if not isinstance(function, ast.FunctionDef) or any(arg.arg != "self" for arg in function.args.args):
        return ""
    attributes = [node for node in ast.walk(function) if isinstance(node, ast.Attribute)]
    own = [node.attr for node in attributes if isinstance(node.value, ast.Name) and node.value.id == "self"]
    if not all(name.startswith(("assert", "fail", "subTest")) for name in own):
        return ""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    if not body:
        return ""
    needed = _needed(tree, body)
    if needed is None:
        return ""
    lines = split_lines(text)
    code = "\n".join(lines[body[0].lineno - 1 : function.end_lineno])
    parts = [_source(node, needed[node], lines) for node in tree.body if node in needed]
    return "\n".join([*parts, "", textwrap.dedent(code)]).strip()


def _needed(tree: ast.Module, body: Sequence[ast.stmt]) -> dict[ast.stmt, set[str]] | None:
    """Return the imports and definitions of a file that statements need, each with the names that are used.

    None if some of the names are not defined in the file.
    """
    definitions = {name: node for node in tree.body for name in _defined(node)}
    needed: dict[ast.stmt, set[str]] = {}
    pending: list[Sequence[ast.stmt]] = [body]
    while pending:
        inner = [node for statement in pending.pop() for node in ast.walk(statement)]
        local = {name for node in inner for name in _defined(node)} | {"self"}
        for name in {node.id for node in inner if isinstance(node, ast.Name)} - local - _BUILTINS:
            if (definition := definitions.get(name)) is None:
                return None
            if definition not in needed:
                pending.append([definition])
            needed.setdefault(definition, set()).add(name)
    return needed


def _source(node: ast.stmt, names: Collection[str], lines: Sequence[str]) -> str:
    """Return the source of a statement; of an import only the names that are used."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        node.names = [alias for alias in node.names if _bound(alias) in names]
        return ast.unparse(node)
    return "\n".join(lines[first_line(node) - 1 : node.end_lineno])


def _bound(alias: ast.alias) -> str:
    return (alias.asname or alias.name).partition(".")[0]


def _defined(node: ast.AST) -> set[str]:
    """Return the names that a statement, or a part of one, defines."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return set(map(_bound, node.names))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.arg):
        return {node.arg}
    if isinstance(node, ast.ExceptHandler):
        return {node.name} if node.name else set()
    return {
        inner.id
        for inner in ast.walk(node)
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
    }
