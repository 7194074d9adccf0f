"""Patches and edits as lines for a page, highlighted by Pygments on the server.

All input comes from models and is untrusted. Output is plain strings, which the template escapes, or HTML
escaped by Pygments' formatter. Lines are highlighted (``highlighting``) after truncation, because Pygments
takes about 0.1 ms a line.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

from engine.errors import PatchError
from engine.patches.structure import parse_patch
from webapp.core.contexts.printed import marked
from webapp.rollouts.contexts.highlighting import highlighted

PATCH_LINES = 500
EDIT_LINES = 200
LINE_CHARS = 1_000
MAX_HIGHLIGHT = 30_000
"""Maximum characters of a diff that is highlighted."""
MAX_PARSED_LINES = 20_000
"""Maximum lines of a patch that is parsed whole, which takes 0.1 s."""
_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_CONTEXT = 3
"""Unchanged lines shown on each side of a change; the others are folded."""
_MAX_COMPARED = 100_000
"""Maximum product of the line counts of two texts that are compared line by line."""
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
    num_shown: int
    """Lines of the diff that are shown, including folded unchanged lines."""

    @property
    def cut(self) -> bool:
        """Return whether lines are left out at the end."""
        return self.num_lines > self.num_shown


def code_lines(lines: Sequence[str], path: str) -> list[SafeString]:
    """Return HTML of each line, highlighted in the file's language up to ``MAX_HIGHLIGHT`` characters."""
    shown = [line[:LINE_CHARS] for line in lines]
    coloured = highlighted(shown, path) if sum(map(len, shown)) <= MAX_HIGHLIGHT else None
    # The formatter escapes its output.
    html = [escape(line) for line in shown] if coloured is None else [mark_safe(line) for line in coloured]  # noqa: S308
    return [_finished(line, len(whole)) for line, whole in zip(html, lines, strict=True)]


def _finished(html: SafeString, length: int) -> SafeString:
    if length <= LINE_CHARS:
        return marked(html)
    return marked(html) + escape(f" … {length - LINE_CHARS:,} more characters")


@functools.lru_cache(maxsize=64)
def patch_diff(patch: str, limit: int = PATCH_LINES) -> Diff | None:
    """Return a unified diff; None if it is empty. Text that is no unified diff is shown unchanged.

    Of a long patch only the shown part is parsed. Its lines and files are counted by line prefixes, so the
    counts are approximate: an added line ``++ x`` counts as a header.
    """
    if not patch.strip():
        return None
    raw = patch.rstrip("\n").split("\n")
    is_long = len(raw) > MAX_PARSED_LINES
    try:
        files = parse_patch(_head(raw, limit) if is_long else patch)
    except PatchError:
        files = []
    hunks = [(file, hunk) for file in files for hunk in file.hunks]
    lines: list[DiffLine] = []
    for file, hunk in hunks:
        if hunk.first_line >= limit:
            break
        lines += [_header(line) for line in raw[len(lines) : hunk.first_line]]
        lines += _hunk_lines(raw[hunk.first_line : min(hunk.end_line, limit)], file.paths)
    lines += [_header(line) for line in raw[len(lines) : limit]]
    if is_long and files:
        starts = Counter(line[:4] for line in raw)
        added, removed = (
            sum(count for start, count in starts.items() if start[:1] == sign and start != f"{3 * sign} ")
            for sign in "+-"
        )
        return Diff(tuple(lines), len(raw), added, removed, starts["diff"] or starts["+++ "], len(lines))
    signs = [line[:1] for _, hunk in hunks for line in raw[hunk.first_line + 1 : hunk.end_line]]
    return Diff(tuple(lines), len(raw), signs.count("+"), signs.count("-"), len(files), len(lines))


def _head(raw: list[str], limit: int) -> str:
    """Return the first lines as a valid patch: the header of a truncated hunk counts its remaining lines."""
    head = [*raw[:limit], ""]
    headers = [(place, header) for place, line in enumerate(head) if (header := _HUNK.match(line))]
    if not headers:
        return "\n".join(head)
    last, header = headers[-1]
    old_start, old, new_start, new = header.groups(default="1")
    body = head[last + 1 : -1]
    num_old = min(int(old), sum(line[:1] in " -" for line in body))
    num_new = min(int(new), sum(line[:1] in " +" for line in body))
    if not num_old and not num_new:
        return "\n".join(head[:last])  # unidiff misplaces a hunk without lines
    head[last] = f"@@ -{old_start},{num_old} +{new_start},{num_new} @@"
    return "\n".join(head)


def _header(line: str, css: str = "gh") -> DiffLine:
    return DiffLine(css, "", _finished(escape(line[:LINE_CHARS]), len(line)))


def _hunk_lines(raw: list[str], paths: tuple[str, ...]) -> list[DiffLine]:
    code = code_lines([line[1:] for line in raw[1:]], paths[-1] if paths else "")
    return [
        _header(raw[0], "gu"),
        *(
            DiffLine(_CSS.get(line[:1], ""), line[:1] or " ", html)
            for line, html in zip(raw[1:], code, strict=True)
        ),
    ]


@dataclass(frozen=True, slots=True)
class _Row:
    """Line of a diff: its index in the old text (removed) or the new text, or a run of folded lines."""

    sign: str
    place: int
    folded: int = 0


def edit_diff(old: str, new: str, path: str, limit: int = EDIT_LINES) -> Diff:
    """Return a ``str_replace`` as a diff from the old to the new text; long unchanged parts are folded."""
    old_lines, new_lines = old.split("\n"), new.split("\n")
    rows = list(_rows(old_lines, new_lines))
    html = {
        "-": _places(old_lines, [row.place for row in rows[:limit] if row.sign == "-"], path),
        "": _places(
            new_lines, [row.place for row in rows[:limit] if row.sign != "-" and not row.folded], path
        ),
    }
    lines = [
        DiffLine("gu", "", escape(f"… {row.folded:,} unchanged lines"))
        if row.folded
        else DiffLine(_CSS.get(row.sign, ""), row.sign, html["-" if row.sign == "-" else ""][row.place])
        for row in rows[:limit]
    ]
    added, removed = (sum(row.sign == sign for row in rows) for sign in "+-")
    shown = sum(row.folded or 1 for row in rows[:limit])
    return Diff(tuple(lines), sum(row.folded or 1 for row in rows), added, removed, 1, shown)


def _places(lines: list[str], places: list[int], path: str) -> dict[int, SafeString]:
    """Return HTML of the lines at some indices, highlighted together with the lines between them."""
    if not places:
        return {}
    first = places[0]
    return dict(enumerate(code_lines(lines[first : places[-1] + 1], path), start=first))


def _rows(old: list[str], new: list[str]) -> Iterator[_Row]:
    for op, i1, i2, j1, j2 in opcodes(old, new):
        if op == "equal":
            yield from _unchanged(j1, j2, is_first=j1 == 0, is_last=j2 == len(new))
            continue
        yield from (_Row("-", place) for place in range(i1, i2))
        yield from (_Row("+", place) for place in range(j1, j2))


def _unchanged(start: int, end: int, *, is_first: bool, is_last: bool) -> Iterator[_Row]:
    before, after = 0 if is_first else _CONTEXT, 0 if is_last else _CONTEXT
    folded = end - start - before - after
    if folded <= 2 * _CONTEXT:
        yield from (_Row(" ", place) for place in range(start, end))
        return
    yield from (_Row(" ", place) for place in range(start, start + before))
    yield _Row("", start, folded)
    yield from (_Row(" ", place) for place in range(end - after, end))


def opcodes(old: list[str], new: list[str]) -> Iterator[tuple[str, int, int, int, int]]:
    """Yield ``difflib``'s opcodes; a common head and tail are not passed to ``difflib``.

    Lists whose middle parts are too long to compare are one replacement there.
    """
    most = min(len(old), len(new))
    head = next((n for n in range(most) if old[n] != new[n]), most)
    most -= head
    tail = next((n for n in range(most) if old[-1 - n] != new[-1 - n]), most)
    a, b = old[head : len(old) - tail], new[head : len(new) - tail]
    if head:
        yield ("equal", 0, head, 0, head)
    if len(a) * len(b) > _MAX_COMPARED:
        yield ("replace", head, head + len(a), head, head + len(b))
    else:
        matcher = difflib.SequenceMatcher(a=a, b=b, autojunk=False)
        yield from (
            (op, i1 + head, i2 + head, j1 + head, j2 + head) for op, i1, i2, j1, j2 in matcher.get_opcodes()
        )
    if tail:
        yield ("equal", len(old) - tail, len(old), len(new) - tail, len(new))


def added_diff(text: str, path: str, limit: int = EDIT_LINES) -> Diff:
    """Return a new file or inserted text as a diff of added lines."""
    lines = text.split("\n")
    html = code_lines(lines[:limit], path)
    shown = tuple(DiffLine("gi", "+", line) for line in html)
    return Diff(shown, len(lines), len(lines), 0, 1, len(shown))
