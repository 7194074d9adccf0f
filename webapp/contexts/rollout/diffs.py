"""Patches and edits as lines for a page, highlighted by Pygments on the server.

Everything comes from models, so it is hostile: text leaves here as plain strings (the template escapes)
or as what Pygments' HTML formatter escaped.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound

from engine.errors import PatchError
from engine.patches.structure import parse_patch

MAX_LINES = 2000
MAX_HIGHLIGHT = 200_000
"""Characters above which code is shown without colours: Pygments takes about 0.1 ms a line."""
_CSS = {"+": "gi", "-": "gd"}


@dataclass(frozen=True, slots=True)
class DiffLine:
    """One line: ``css`` is gi (added), gd (removed), gh (file), gu (hunk) or empty; ``html`` is safe."""

    css: str
    sign: str
    html: SafeString


@dataclass(frozen=True, slots=True)
class Diff:
    """The first lines of a diff, and the number of all lines."""

    lines: tuple[DiffLine, ...]
    num_lines: int
    num_added: int
    num_removed: int
    num_files: int

    @property
    def cut(self) -> bool:
        """Return whether lines are left out."""
        return self.num_lines > len(self.lines)


def code_lines(text: str, path: str) -> list[SafeString]:
    """Return highlighted HTML of every line of ``text``, by the file name's language."""
    count = text.count("\n") + 1
    if len(text) > MAX_HIGHLIGHT:
        return [escape(line) for line in text.split("\n")]
    try:
        lexer = get_lexer_for_filename(path, stripnl=False, ensurenl=False)
    except ClassNotFound:
        lexer = TextLexer(stripnl=False, ensurenl=False)
    html = highlight(text, lexer, HtmlFormatter(nowrap=True)).split("\n")
    # Pygments normalises line ends; where it counts lines otherwise, plain text is right.
    if len(html) not in (count, count + 1):
        return [escape(line) for line in text.split("\n")]
    return [mark_safe(line) for line in html[:count]]  # noqa: S308  (escaped by the formatter)


def patch_diff(patch: str) -> Diff | None:
    """Return a unified diff; None if it is empty. Text that is no unified diff is shown unchanged."""
    if not patch.strip():
        return None
    raw = patch.rstrip("\n").split("\n")
    try:
        files = parse_patch(patch)
    except PatchError:
        files = []
    hunks = [(file, hunk) for file in files for hunk in file.hunks]
    lines: list[DiffLine] = []
    for file, hunk in hunks:
        if hunk.first_line >= MAX_LINES:
            break
        lines += [DiffLine("gh", "", escape(line)) for line in raw[len(lines) : hunk.first_line]]
        lines += _hunk_lines(raw[hunk.first_line : min(hunk.end_line, MAX_LINES)], file.paths)
    lines += [DiffLine("gh", "", escape(line)) for line in raw[len(lines) : MAX_LINES]]
    signs = [line[:1] for _, hunk in hunks for line in raw[hunk.first_line + 1 : hunk.end_line]]
    return Diff(tuple(lines), len(raw), signs.count("+"), signs.count("-"), len(files))


def _hunk_lines(raw: list[str], paths: tuple[str, ...]) -> list[DiffLine]:
    code = code_lines("\n".join(line[1:] for line in raw[1:]), paths[-1] if paths else "")
    return [
        DiffLine("gu", "", escape(raw[0])),
        *(
            DiffLine(_CSS.get(line[:1], ""), line[:1] or " ", html)
            for line, html in zip(raw[1:], code, strict=True)
        ),
    ]


def edit_diff(old: str, new: str, path: str) -> Diff:
    """Return a ``str_replace`` as a diff from the old to the new text."""
    old_lines, new_lines = old.split("\n"), new.split("\n")
    old_html, new_html = code_lines(old, path), code_lines(new, path)
    lines: list[DiffLine] = []
    matcher = difflib.SequenceMatcher(a=old_lines, b=new_lines, autojunk=False)
    if len(old_lines) * len(new_lines) > 250_000:
        blocks = [("replace", 0, len(old_lines), 0, len(new_lines))]
    else:
        blocks = [(op, i1, i2, j1, j2) for op, i1, i2, j1, j2 in matcher.get_opcodes()]
    for op, i1, i2, j1, j2 in blocks:
        if op == "equal":
            lines += [DiffLine("", " ", html) for html in old_html[i1:i2]]
            continue
        lines += [DiffLine("gd", "-", html) for html in old_html[i1:i2]]
        lines += [DiffLine("gi", "+", html) for html in new_html[j1:j2]]
    added = sum(1 for line in lines if line.css == "gi")
    removed = sum(1 for line in lines if line.css == "gd")
    return Diff(tuple(lines[:MAX_LINES]), len(lines), added, removed, 1)


def added_diff(text: str, path: str) -> Diff:
    """Return a new file or inserted text: every line is added."""
    html = code_lines(text, path)
    return Diff(tuple(DiffLine("gi", "+", line) for line in html[:MAX_LINES]), len(html), len(html), 0, 1)
