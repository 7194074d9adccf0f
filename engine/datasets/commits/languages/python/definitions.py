"""Code of functions and classes in Python files, found by qualified names."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from engine.errors import HostileInputError
from engine.isolation import SOURCE_LIMITS, call_isolated


def definitions(files: Mapping[str, str], names: Iterable[tuple[str, str]]) -> str:
    """Return the code of functions and classes; those that cannot be found are left out.

    Args:
        files: path → text of Python files.
        names: path and qualified name of each.
    """
    shown = []
    for path, name in names:
        if path in files:
            with contextlib.suppress(HostileInputError):
                shown.append(call_isolated(partial(_code, files[path], name.split(".")), SOURCE_LIMITS))
    return "\n\n".join(filter(None, shown))


def _code(text: str, names: Sequence[str]) -> str:
    """Return the lines of a file's definition; an empty text without it."""
    tree = parse(text)
    node = find_definition(tree, names) if tree is not None else None
    return "\n".join(split_lines(text)[first_line(node) - 1 : node.end_lineno]) if node is not None else ""


def split_lines(text: str) -> list[str]:
    """Return the lines of a file as Python's parser counts them; a form feed ends none."""
    return re.split(r"\r\n|\r|\n", text)


def parse(text: str) -> ast.Module | None:
    """Return the syntax tree of a file; None if it is no Python of this interpreter. Use it isolated."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def find_definition(tree: ast.Module, names: Sequence[str]) -> ast.stmt | None:
    """Return the definition with a qualified name; None if there is none."""
    nodes: Sequence[ast.stmt] = tree.body
    definition: ast.stmt | None = None
    for name in names:
        definition = next((node for node in nodes if getattr(node, "name", "") == name), None)
        nodes = getattr(definition, "body", [])
    return definition


def first_line(node: ast.stmt) -> int:
    """Return the number of a statement's first line, decorators included."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])
