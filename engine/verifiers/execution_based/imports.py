"""Modules that a test file imports, and whether a file of the repository is one of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import PurePosixPath

_ROOTS = frozenset({(), ("src",), ("lib",), ("python",)})
"""Folders from which projects are imported."""
_MAX_BYTES = 1 << 20
_STATEMENT = re.compile(
    r"^[ \t]*+(?:from(?=[ \t.])[ \t]*+(?P<dots>\.*+)[ \t]*+(?:(?!import\b)(?P<module>[\w.]++)[ \t]++)?"
    r"import\b[ \t]*+(?P<names>\([^)]*+|[^\n]*+)|import[ \t]++(?P<plain>[^\n]*+))",
    re.MULTILINE,
)
"""Import statement as text, also in files that this version of Python cannot parse.

Possessive quantifiers keep the time linear for hostile files.
"""


def module_names(paths: Iterable[str]) -> frozenset[tuple[str, ...]]:
    """Return the names, in parts, under which the Python files of a repository may be imported."""
    names: set[tuple[str, ...]] = set()
    for path in paths:
        parts = _parts(path)
        names.update(parts[start:] for start in range(len(parts)))
    return frozenset(names)


def imported_modules(
    path: str, source: bytes, known: Collection[tuple[str, ...]]
) -> frozenset[tuple[str, ...]]:
    """Return the modules named by the imports of a test file, in parts.

    ``from a import b`` names the module ``a.b`` if it exists, else ``a``, which may import ``b`` from any
    module of its package.

    Args:
        path: path of the test file, for relative imports.
        known: see ``module_names``.
    """
    modules: set[tuple[str, ...]] = set()
    for statement in _STATEMENT.finditer(source[:_MAX_BYTES].decode("utf-8", "replace")):
        dots, base, plain = statement["dots"] or "", statement["module"] or "", statement["plain"]
        if plain is not None:
            modules.update(tuple(alias.split(".")) for alias in _names(plain))
            continue
        above = PurePosixPath(path).parts[: -len(dots)] if dots else ()
        module = (*above, *(base.split(".") if base else ()))
        within = [(*module, alias) for alias in _names(statement["names"])]
        modules.update([name if name in known else module for name in within] or [module])
    return frozenset(modules)


def _names(text: str) -> list[str]:
    """Return the names of a list of imports, without their aliases and comments."""
    parts = (part.split("#")[0].split() for part in text.strip("()").replace("\n", ",").split(","))
    return [words[0] for words in parts if words and words[0] != "\\"]


def is_imported(path: str, modules: Collection[tuple[str, ...]]) -> bool:
    """Return whether a file is one of the modules, or directly in a package among them.

    Args:
        path: path of a Python file, relative to the workdir.
    """
    parts = _parts(path)
    return any(_is(parts, module) or _is(parts[:-1], module) for module in modules)


def _parts(path: str) -> tuple[str, ...]:
    """Return the name, in parts, that a Python file's path gives its module."""
    parts = PurePosixPath(path).with_suffix("").parts
    return parts[:-1] if parts[-1:] == ("__init__",) else parts


def _is(parts: tuple[str, ...], module: tuple[str, ...]) -> bool:
    """Return whether a path is that of a module. A name of one part must be at an import root."""
    if not module or parts[len(parts) - len(module) :] != module or len(parts) < len(module):
        return False
    return len(module) > 1 or parts[: -len(module)] in _ROOTS
