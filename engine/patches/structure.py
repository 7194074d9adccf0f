"""A git-format patch as data: files, hunks, and each hunk's exact text before and after."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from engine.errors import PatchError

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_GIT_HEADER = re.compile(r'diff --git ("?a/.*?"?) ("?b/.*"?)$')
_ESCAPE = re.compile(rb'\\([0-7]{3}|["\\abfnrtv])')
_ESCAPED = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


@dataclass(frozen=True, slots=True)
class Hunk:
    """One change; texts keep every line's newline."""

    old_start: int
    new_start: int
    """First line in the file after all earlier hunks of the same file were applied."""
    old: str
    new: str


@dataclass(slots=True)
class FileChange:
    """What a patch does to one file; ``None`` paths stand for a file that is not there."""

    old_path: str | None
    new_path: str | None
    hunks: list[Hunk] = field(default_factory=list)
    new_mode: str | None = None
    """Octal mode where the patch sets one, e.g. ``100755``."""
    binary: bool = False


def parse_patch(patch: str) -> list[FileChange]:
    """Read a git-format patch.

    Raises:
        PatchError: it is not one; the message names the line.
    """
    changes: list[FileChange] = []
    lines = patch.split("\n")
    position = 0
    while position < len(lines):
        line = lines[position]
        position += 1
        if line.startswith("diff --git "):
            header = _GIT_HEADER.match(line)
            if header is None:
                raise PatchError(f"line {position}: cannot read the paths of '{line}'")
            changes.append(FileChange(_path(header[1]), _path(header[2])))
        elif changes and (match := _HUNK.match(line)):
            hunk, position = _read_hunk(match, lines, position)
            changes[-1].hunks.append(hunk)
        elif changes:
            _read_header(changes[-1], line)
        elif line.strip():
            raise PatchError(f"line {position}: expected 'diff --git', got '{line[:80]}'")
    return changes


def _read_header(change: FileChange, line: str) -> None:
    if line.startswith(("--- ", "+++ ")):
        path = _path(line[4:].removesuffix("\t"))
        if line.startswith("---"):
            change.old_path = path
        else:
            change.new_path = path
    elif line.startswith("new file mode "):
        change.old_path, change.new_mode = None, line.split()[-1]
    elif line.startswith("new mode "):
        change.new_mode = line.split()[-1]
    elif line.startswith("deleted file mode "):
        change.new_path = None
    elif line.startswith(("GIT binary patch", "Binary files ")):
        change.binary = True


def _read_hunk(header: re.Match[str], lines: list[str], position: int) -> tuple[Hunk, int]:
    old_left = int(header[2] if header[2] is not None else 1)
    new_left = int(header[4] if header[4] is not None else 1)
    old: list[str] = []
    new: list[str] = []
    touched: list[list[str]] = []
    while old_left > 0 or new_left > 0 or (position < len(lines) and lines[position].startswith("\\")):
        if position >= len(lines):
            raise PatchError("the patch ends inside a hunk")
        line = lines[position]
        position += 1
        if line.startswith("\\"):
            for side in touched:
                side[-1] = side[-1].removesuffix("\n")
            continue
        mark = line[:1] or " "
        if mark not in " +-":
            raise PatchError(f"line {position}: '{line[:80]}' does not belong in a hunk")
        touched = [side for side, marks in ((old, " -"), (new, " +")) if mark in marks]
        for side in touched:
            side.append(f"{line[1:]}\n")
        old_left -= mark in " -"
        new_left -= mark in " +"
    return Hunk(int(header[1]), int(header[3]), "".join(old), "".join(new)), position


def _path(text: str) -> str | None:
    if text == "/dev/null":
        return None
    if text.startswith('"'):
        raw = text.strip('"').encode()
        text = _ESCAPE.sub(_unescaped, raw).decode("utf-8", "surrogateescape")
    return text[2:] if text.startswith(("a/", "b/")) else text


def _unescaped(match: re.Match[bytes]) -> bytes:
    code = match[1]
    return bytes((int(code, 8),)) if len(code) == 3 else _ESCAPED.get(code, code)
