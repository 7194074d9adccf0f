"""Scope of fault rules: a function, its lines, the names in scope, and edits of single lines.

Columns are UTF-8 byte offsets, as in ``ast``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Edit(NamedTuple):
    """Replace the bytes ``start:end`` of a line (counted from 1)."""

    kind: str
    line: int
    start: int
    end: int
    replacement: bytes


class FunctionScope:
    """A function's node, the module's lines, and the names available to a fault."""

    def __init__(self, node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[bytes]) -> None:
        self.node = node
        self.lines = lines
        self.bound = _bound_names(node)
        self.self_attributes = sorted(
            {
                child.attr
                for child in ast.walk(node)
                if isinstance(child, ast.Attribute)
                and isinstance(child.value, ast.Name)
                and child.value.id == "self"
            }
        )

    def text(self, node: ast.expr) -> bytes:
        """Return the source bytes of a one-line node."""
        return self.lines[node.lineno - 1][node.col_offset : node.end_col_offset]

    def gap(self, left: ast.expr, right: ast.expr, operator: str) -> tuple[int, int, int] | None:
        """Return line, start and end of ``operator`` (a pattern) between two nodes if on one line."""
        if left.end_lineno != right.lineno:
            return None
        start, end = left.end_col_offset or 0, right.col_offset
        between = self.lines[right.lineno - 1][start:end].decode("utf-8", "replace")
        match = re.fullmatch(rf"[\s)]*({operator})[\s(]*", between)
        return (right.lineno, start + match.start(1), start + match.end(1)) if match else None

    def swap(self, kind: str, left: ast.expr, right: ast.expr) -> Iterator[Edit]:
        """Yield the edit that exchanges two nodes of one line."""
        if not (left.lineno == left.end_lineno == right.lineno == right.end_lineno):
            return
        line = self.lines[left.lineno - 1]
        between = line[left.end_col_offset : right.col_offset]
        yield Edit(
            kind,
            left.lineno,
            left.col_offset,
            right.end_col_offset or 0,
            self.text(right) + between + self.text(left),
        )


def _bound_names(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[tuple[str, int]]:
    args = function.args
    parameters = [*args.posonlyargs, *args.args, *args.kwonlyargs]
    parameters += [extra for extra in (args.vararg, args.kwarg) if extra]
    bound = {parameter.arg: function.lineno for parameter in parameters}
    stack: list[ast.AST] = list(reversed(function.body))
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.setdefault(node.id, node.lineno)
        if not isinstance(node, _NESTED + _COMPREHENSIONS):
            stack.extend(reversed(list(ast.iter_child_nodes(node))))
    return [(name, line) for name, line in bound.items() if name not in ("self", "cls", "_")]
