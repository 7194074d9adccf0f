"""Detection of tests that read source code: only the text of one solution passes them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_MODULES = frozenset({"inspect", "ast", "linecache", "tokenize", "dis", "pkgutil", "importlib.resources"})
_NAMES = frozenset({"__file__", "__code__", "__loader__", "__import__"})
_READERS = frozenset({"open", "io.open", "os.open", "codecs.open"})
_READING_METHODS = frozenset({"read_text", "read_bytes"})
_TMP_PATH = "tmp_path"


def find_source_reading(tree: ast.Module) -> str:
    """Return the first construct by which a test file may read source code; empty without one.

    Files below ``tmp_path`` may be read.
    """
    below = _names_below_tmp_path(tree)
    for node in ast.walk(tree):
        for module in _imported(node):
            if not _MODULES.isdisjoint({module, module.partition(".")[0]}):
                return f"import of {module}"
        name = getattr(node, "id", getattr(node, "attr", ""))
        if name in _NAMES:
            return str(name)
        if isinstance(node, ast.Call) and _reads(node.func) and below.isdisjoint(_names(node)):
            return ast.unparse(node.func)[:100]
    return ""


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        yield node.module or ""
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _reads(function: ast.expr) -> bool:
    if isinstance(function, ast.Attribute):
        is_path = isinstance(function.value, ast.Call) and ast.unparse(function.value.func).endswith("Path")
        if function.attr in _READING_METHODS or (function.attr == "open" and is_path):
            return True
    return isinstance(function, ast.Name | ast.Attribute) and ast.unparse(function) in _READERS


def _names_below_tmp_path(tree: ast.Module) -> set[str]:
    """Return ``tmp_path`` and the names whose values come from it."""
    sources: list[tuple[set[str], set[str]]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            sources.append((set().union(*map(_names, node.targets)), _names(node.value)))
        elif isinstance(node, ast.For | ast.comprehension):
            sources.append((_names(node.target), _names(node.iter)))
    below = {_TMP_PATH}
    for _ in range(len(sources)):
        known = len(below)
        for targets, values in sources:
            if not below.isdisjoint(values):
                below |= targets
        if len(below) == known:
            break
    return below


def _names(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
