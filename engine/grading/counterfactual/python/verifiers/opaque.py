"""Programs that may end by other means than those that are read."""

from __future__ import annotations

import ast

from engine.grading.counterfactual.python import names
from engine.grading.counterfactual.python.source import PythonSource

_OPAQUE = names.INTROSPECTION | {
    "atexit", "excepthook", "signal", "settrace", "execv", "execve", "execvp", "execl", "__import__",
    "unittest", "pytest", "doctest", "click", "typer", "fire", "threading", "multiprocessing",
}  # fmt: skip
"""Names after which a program may end by other means."""
_BUILTINS = frozenset({"exit", "quit", "SystemExit", "bool", "int", "len", "all", "list", "dict", "set"})
"""Functions that must mean what they are called."""


def is_opaque(source: PythonSource) -> bool:
    """Return whether a program may end by other means, or gives names that must be known another meaning."""
    used = {getattr(node, "id", "") or getattr(node, "attr", "") for node in ast.walk(source.tree)}
    imported = {name.partition(".")[0] for node in ast.walk(source.tree) for name in _imported(node)}
    bound = source.constants.bound
    hides = any(bound[name] for name in ("*", *_BUILTINS))
    return bool((used | imported) & _OPAQUE) or hides or source.defines("sys")


def _imported(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=aliases):
            return [alias.name for alias in aliases]
        case ast.ImportFrom(module=str(module)):
            return [module]
    return []
