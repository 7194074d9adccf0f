"""Changed entities of a Python file: functions, classes and methods by their qualified names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

from engine.datasets.commits.languages.base import MODULE, EntityChange
from engine.errors import HostileInputError
from engine.isolation import SOURCE_LIMITS, call_isolated
from engine.python_syntax import drop_docstrings

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def changed_entities(old: str, new: str) -> EntityChange:
    """Compare two versions of a file in a process of its own; docstrings do not count.

    Args:
        old, new: its text; empty where it does not exist.

    Raises:
        SyntaxError: a version is no Python of this interpreter's syntax.
        HostileInputError: a version exceeds the parser's limits.
    """
    result = call_isolated(partial(_compare, old, new), SOURCE_LIMITS)
    if isinstance(result, str):
        raise SyntaxError(result)
    return result


def _compare(old: str, new: str) -> EntityChange | str:
    try:
        before, after = (_by_name(ast.parse(text)) for text in (old, new))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, RecursionError | MemoryError):
            raise HostileInputError("the Python source is nested too deeply") from None
        return str(error)
    return EntityChange(
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
        changed=tuple(name for name in after if name in before and after[name] != before[name]),
    )


def _by_name(tree: ast.Module) -> dict[str, list[str]]:
    """Return name → code of all entities of that name, e.g. a property's getter and setter."""
    codes: dict[str, list[str]] = {}
    for name, code in _entities(drop_docstrings(tree)):
        codes.setdefault(name, []).append(code)
    return codes


def _entities(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield qualified name and normalised code of each entity; of a class without its methods."""
    own: list[str] = []
    body: list[ast.stmt] = getattr(node, "body", [])
    for child in body:
        if isinstance(child, _DEFINITIONS):
            name = f"{prefix}{child.name}"
            if isinstance(child, ast.ClassDef):
                yield from _entities(child, f"{name}.")
            else:
                yield name, ast.dump(child)
        else:
            own.append(ast.dump(child))
    if isinstance(node, ast.ClassDef):
        heads = [*node.decorator_list, *node.bases, *node.keywords]
        own = [*map(ast.dump, heads), *own]
    yield prefix.removesuffix(".") or MODULE, "\n".join(own)
