"""Comparison of build files, which configure tests as well: detects changes of the product alone.

An honest solution may need another dependency or source file. So such a change is graded if it does
nothing else: dependencies and entry points in ``package.json``, dependencies and features in ``Cargo.toml``,
requirements added to ``go.mod``, additions to ``Cargo.lock`` and ``go.sum``, source files added to the lists
of CMake and Meson. Every other change of such a file, and of every other build file, may replace or skip
tests. To support another format, add a comparison to ``_COMPARISONS``.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

from engine.datasets.paths import is_test_code

_PACKAGE_FIELDS = frozenset({"exports", "main", "module", "types", "typings", "version", "description"})
_DEPENDENCIES = ("dependencies", "optionalDependencies", "peerDependencies")
_VERSIONS = re.compile(r"[\w.^~<>=*|+ -]+")
_ORIGIN = ("path", "git", "registry", "package", "workspace")
"""Keys of a dependency in ``Cargo.toml`` that set the origin of its code."""
_TOKEN = re.compile(r"""#[^\n]*|"(?:[^"\\]|\\.)*"|'[^'\n]*'|[()\[\],]|[^\s()\[\],"'#]+|\S""")
_SOURCE = re.compile(
    r"""(["']?)(?![./]*\.\.)[\w./+-]+\.(?:c|cc|cpp|cxx|h|hh|hpp|hxx|ipp|m|mm|cu|cuh|f90|s)\1""", re.I
)
_APART = re.compile(r"[\s()\[\],]")
_LISTS = frozenset(
    {
        "add_library", "add_executable", "target_sources", "set", "library", "static_library",
        "shared_library", "both_libraries", "executable", "files", "",
    }
)  # fmt: skip
"""Commands that list source files, in CMake and Meson; empty: a list outside of a command."""


def is_product_change(path: str, old: bytes, new: bytes) -> bool:
    """Return whether a change of a build file concerns the product alone, not how it is tested.

    Args:
        old, new: contents of the file; untrusted.
    """
    compare = _COMPARISONS.get(PurePosixPath(path).name.lower())
    if compare is None and path.endswith(".cmake"):
        compare = _adds_sources
    try:
        return compare is not None and compare(old.decode(), new.decode())
    except (
        ValueError,
        TypeError,
        AttributeError,
        LookupError,
        RecursionError,
    ):  # not the format's structure
        return False


def _package_json(old: str, new: str) -> bool:
    before, after = json.loads(old), json.loads(new)
    changed = {key for key in {*before, *after} if before.get(key) != after.get(key)}
    return changed <= {*_PACKAGE_FIELDS, *_DEPENDENCIES} and all(
        isinstance(version, str) and _VERSIONS.fullmatch(version) is not None
        for key in changed.intersection(_DEPENDENCIES)
        for name, version in after.get(key, {}).items()
        if before.get(key, {}).get(name) != version
    )


def _cargo_toml(old: str, new: str) -> bool:
    before, after = tomllib.loads(old), tomllib.loads(new)
    return _same_but_dependencies(before, after)


def _same_but_dependencies(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    for key in {*before, *after}:
        old, new = before.get(key, {}), after.get(key, {})
        if old == new or key == "features":
            continue
        if key == "dependencies":
            if any(_origin(old.get(name)) != _origin(new[name]) for name in new):
                return False
        elif key != "target" or any(
            not _same_but_dependencies(old.get(name, {}), new.get(name, {})) for name in {*old, *new}
        ):
            return False
    return True


def _origin(dependency: Any) -> dict[str, Any]:
    """Return the origin of a crate; empty for the registry."""
    fields = dependency if isinstance(dependency, dict) else {}
    return {key: fields[key] for key in _ORIGIN if key in fields}


def _cargo_lock(old: str, new: str) -> bool:
    before, after = (tomllib.loads(text) for text in (old, new))
    known, locked = (_locked(lock) for lock in (before, after))
    added = locked - known
    return known <= locked and all(source.startswith("registry+") for _, _, source, _ in added)


def _locked(lock: Mapping[str, Any]) -> set[tuple[str, str, str, str]]:
    """Return name, version, source and checksum of crates that are not the workspace's own."""
    return {
        (package["name"], package["version"], package["source"], package.get("checksum", ""))
        for package in lock.get("package", ())
        if "source" in package
    }


def _go_mod(old: str, new: str) -> bool:
    (required, others), (now_required, now_others) = _go_lines(old), _go_lines(new)
    return required <= now_required and others == now_others


def _go_lines(text: str) -> tuple[set[str], list[str]]:
    """Return the requirements of a ``go.mod``, and all its other directives."""
    required: set[str] = set()
    others: list[str] = []
    block = ""
    for line in text.split("\n"):
        words = line.partition("//")[0].split()
        if not words:
            continue
        if block and words == [")"]:
            block = ""
        elif not block and words[1:] == ["("]:
            block = words[0]
        elif (block or words[0]) == "require":
            required.add(" ".join(words if block else words[1:]))
        else:
            others.append(" ".join([block, *words]))
    return required, others


def _go_sum(old: str, new: str) -> bool:
    return set(old.split("\n")) <= set(new.split("\n"))


def _adds_sources(old: str, new: str) -> bool:
    """Return whether a build script only gains source files in lists of source files."""
    known = iter(_TOKEN.findall(old))
    wanted = next(known, None)
    commands: list[str] = [""]
    before = ""
    for match in _TOKEN.finditer(new):
        token = match[0]
        if token == wanted:
            wanted = next(known, None)
        elif commands[-1] not in _LISTS or not (token == "," or _is_source(match)):
            return False
        if token in ("(", "["):
            commands.append(before.lower() if token == "(" else commands[-1])
        elif token in (")", "]") and len(commands) > 1:
            commands.pop()
        before = token
    return wanted is None


def _is_source(found: re.Match[str]) -> bool:
    """Return whether a token is the name of a source file, apart from its neighbours, and no test."""
    text, token = found.string, found[0]
    apart = _APART.match(text[found.start() - 1 : found.start()]) and _APART.match(text[found.end() :][:1])
    return bool(apart and _SOURCE.fullmatch(token)) and not is_test_code(token.strip("\"'"))


_COMPARISONS: Mapping[str, Callable[[str, str], bool]] = {
    "package.json": _package_json,
    "cargo.toml": _cargo_toml,
    "cargo.lock": _cargo_lock,
    "go.mod": _go_mod,
    "go.sum": _go_sum,
    "cmakelists.txt": _adds_sources,
    "meson.build": _adds_sources,
}
