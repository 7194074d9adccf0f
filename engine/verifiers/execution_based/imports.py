"""Which modules a test file imports, and whether a file of the repository is one of them."""

from __future__ import annotations

import ast
from collections.abc import Collection
from pathlib import PurePosixPath

_ROOTS = frozenset({(), ("src",), ("lib",), ("python",)})
"""Folders from which projects are imported."""
_MAX_BYTES = 1 << 20


def imported_modules(path: str, source: bytes) -> frozenset[tuple[str, ...]]:
    """Return the modules named by the imports of a test file, in parts; none where it cannot be parsed.

    Of ``from a import b`` both ``a`` and ``a.b`` are returned, for ``b`` may be either.

    Args:
        path: of the test file, from which relative imports are resolved.
    """
    if len(source) > _MAX_BYTES:
        return frozenset()
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    found: set[tuple[str, ...]] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = PurePosixPath(path).parts[: -node.level] if node.level else ()
            module = (*above, *(node.module.split(".") if node.module else ()))
            found.add(module)
            found.update((*module, alias.name) for alias in node.names)
    return frozenset(found)


def is_imported(path: str, modules: Collection[tuple[str, ...]]) -> bool:
    """Return whether a file is one of the modules, or lies in a package that is.

    Args:
        path: of a Python file, relative to the workdir.
    """
    parts = PurePosixPath(path).with_suffix("").parts
    parts = parts[:-1] if parts[-1:] == ("__init__",) else parts
    return any(_is(parts, module) or _is(parts[:-1], module) for module in modules)


def _is(parts: tuple[str, ...], module: tuple[str, ...]) -> bool:
    """Return whether a path is that of a module. One word is believed at an import root only."""
    if not module or parts[len(parts) - len(module) :] != module or len(parts) < len(module):
        return False
    return len(module) > 1 or parts[: -len(module)] in _ROOTS
