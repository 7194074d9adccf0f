"""Code as highlighted HTML, by Pygments in a process of its own.

Code and file name are a model's, and the name chooses the lexer. Lexers take time squared over text made for
them: Python's over blank lines, others over carriage returns. So the lexers are those of widespread
languages, and a call has little processor time. After one that went over it nothing is highlighted for a
while: a page has many pieces of code, and each would take its time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache, partial

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexer import Lexer
from pygments.lexers import find_lexer_class_for_filename

from engine.errors import HostileInputError
from engine.isolation import Limits, call_isolated

LANGUAGES = frozenset({
    "Bash", "C", "CSharp", "Cpp", "Css", "Diff", "Docker", "Go", "Html", "Ini", "Java", "Javascript", "Json",
    "Jsx", "Kotlin", "Lua", "Makefile", "Markdown", "Php", "Python", "Rst", "Ruby", "Rust", "Scala", "Swift",
    "TOML", "TransactSql", "Tsx", "TypeScript", "Xml", "Yaml",
})  # fmt: skip
"""Lexers of Pygments that are used, without ``Lexer``."""
LIMITS = Limits("code", cpu_s=1.0, memory_bytes=512 << 20)
PAUSE_S = 10.0
_resumes_at = 0.0


class _PausedError(Exception):
    """Nothing is highlighted now."""


def highlighted(lines: Sequence[str], path: str) -> tuple[str, ...] | None:
    """Return safe HTML of each line of code.

    Args:
        lines: without their ends.
        path: its file name chooses the language.

    Returns:
        None where the language is unknown, Pygments counts lines otherwise, or time is up.
    """
    name = path.rpartition("/")[2]
    name = f"x{name[name.rfind('.') :]}" if "." in name else name
    code = tuple(line.removesuffix("\r") for line in lines)
    if _lexer(name) is None or any("\r" in line for line in code):
        return None
    try:
        return _cached(code, name)
    except _PausedError:
        return None


@lru_cache(maxsize=32)
def _cached(lines: tuple[str, ...], name: str) -> tuple[str, ...] | None:
    """Return what Pygments makes of the lines; None where it takes too long. Raises _PausedError."""
    global _resumes_at
    if time.monotonic() < _resumes_at:
        raise _PausedError
    try:
        return call_isolated(partial(pygmentised, lines, name), LIMITS)
    except HostileInputError:
        _resumes_at = time.monotonic() + PAUSE_S
        return None


def pygmentised(lines: tuple[str, ...], name: str) -> tuple[str, ...] | None:
    """Highlight in this process, for as long as it takes; None as ``highlighted``."""
    if (lexer := _lexer(name)) is None:
        return None
    exact = lexer(stripnl=False, ensurenl=False)
    found = highlight("\n".join(lines), exact, HtmlFormatter(nowrap=True)).split("\n")
    return tuple(found[: len(lines)]) if len(found) in (len(lines), len(lines) + 1) else None


@lru_cache(maxsize=256)
def _lexer(name: str) -> type[Lexer] | None:
    kind: type[Lexer] | None = find_lexer_class_for_filename(name)
    return kind if kind is not None and kind.__name__.removesuffix("Lexer") in LANGUAGES else None
