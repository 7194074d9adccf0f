"""Syntax highlighting by Pygments in a separate process.

Code and file name come from a model, and the name selects the lexer. Lexers take quadratic time on
adversarial text: Python's on blank lines, others on carriage returns. Only lexers of widespread languages are
used, and the processor time of a call is limited. After a call exceeds the limit, highlighting pauses: a page
has many pieces of code, and each could reach the limit.
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
"""Pygments lexers in use, named without the suffix ``Lexer``."""
LIMITS = Limits("code", cpu_s=1.0, memory_bytes=512 << 20)
PAUSE_S = 10.0
_resumes_at = 0.0


class _PausedError(Exception):
    """Highlighting is paused."""


def highlighted(lines: Sequence[str], path: str) -> tuple[str, ...] | None:
    """Return safe HTML of each line of code.

    Args:
        lines: lines of code without line breaks.
        path: path of the file; its name selects the language.

    Returns:
        None if the language is unknown, Pygments would split the lines differently, or time is exceeded.
    """
    name = path.rpartition("/")[2]
    # Only the extension selects the lexer: files of one language share cache entries.
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
    """Highlight lines in a separate process; None if that exceeds a limit. Raises _PausedError."""
    global _resumes_at
    if time.monotonic() < _resumes_at:
        raise _PausedError
    try:
        return call_isolated(partial(pygmentised, lines, name), LIMITS)
    except HostileInputError:
        _resumes_at = time.monotonic() + PAUSE_S
        return None


def pygmentised(lines: tuple[str, ...], name: str) -> tuple[str, ...] | None:
    """Highlight in this process, without limits; None as in ``highlighted``."""
    if (lexer := _lexer(name)) is None:
        return None
    exact = lexer(stripnl=False, ensurenl=False)
    html = highlight("\n".join(lines), exact, HtmlFormatter(nowrap=True)).split("\n")
    # The formatter may end its output with a line break.
    return tuple(html[: len(lines)]) if len(html) in (len(lines), len(lines) + 1) else None


@lru_cache(maxsize=256)
def _lexer(name: str) -> type[Lexer] | None:
    kind: type[Lexer] | None = find_lexer_class_for_filename(name)
    return kind if kind is not None and kind.__name__.removesuffix("Lexer") in LANGUAGES else None
