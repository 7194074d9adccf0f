"""Entities and tests of JavaScript files, read by ``syntax.cjs`` in a sandbox."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from engine.datasets.commits.languages.base import EntityChange
from engine.errors import HostileInputError
from engine.reading import read_bounded
from engine.sandbox.local.contained import ContainedLimits, run_contained

_FOLDER = Path(__file__).parent
_LIMITS = ContainedLimits(seconds=60.0, memory_mb=4096, file_mb=8)
_MAX_BYTES = 8 << 20
_MAX_ENTITIES = 5_000


def changed_entities(old: str, new: str, *, home: Path) -> EntityChange:
    """Compare two versions of a file.

    Args:
        old, new: its text; empty where it does not exist.
        home: the data folder.

    Raises:
        SyntaxError: a version is no JavaScript that this Node.js understands.
        HostileInputError: a version exceeds the parser's limits.
    """
    result = _read({"entities": [old, new]}, home)
    if "error" in result:
        raise SyntaxError(str(result["error"])[:500])
    added, removed, changed = (_names(result.get(kind)) for kind in ("added", "removed", "changed"))
    return EntityChange(added=added, removed=removed, changed=changed)


def example(text: str, title: str, *, home: Path) -> str:
    """Return the code of a test that runs by itself; empty without one.

    Args:
        text: the test's file.
        title: titles of its suites and its own.
        home: the data folder.
    """
    try:
        code = _read({"example": [text, title]}, home).get("example")
    except HostileInputError:
        return ""
    return code if isinstance(code, str) else ""


def _read(request: dict[str, list[str]], home: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix=".syntax-", dir=home) as name:
        folder = Path(name)
        (folder / "out").mkdir()
        (folder / "input.json").write_text(json.dumps(request))
        run_contained(
            _FOLDER / "syntax_program.py",
            ["/in/syntax.cjs", "/in/input.json", "result.json"],
            home=home,
            reads={"/in/syntax.cjs": _FOLDER / "syntax.cjs", "/in/input.json": folder / "input.json"},
            writes=folder / "out",
            limits=_LIMITS,
        )
        try:
            result = json.loads(read_bounded(folder / "out" / "result.json", _MAX_BYTES))
        except (OSError, ValueError, RecursionError) as error:
            raise HostileInputError(f"the JavaScript source cannot be read: {error}") from None
    return result if isinstance(result, dict) else {}


def _names(value: object) -> tuple[str, ...]:
    names = value if isinstance(value, list) else []
    return tuple(name for name in names[:_MAX_ENTITIES] if isinstance(name, str))
