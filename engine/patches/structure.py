"""Parsed patches for display and for planning edits: files, hunks, exact text before and after each hunk.

The library unidiff parses them. ``engine.patches.apply`` decides what a patch does to a tree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from unidiff.constants import DEV_NULL
from unidiff.errors import UnidiffParseError
from unidiff.patch import Hunk as RawHunk
from unidiff.patch import PatchedFile, PatchSet

from engine.errors import PatchError

_ESCAPE = re.compile(rb'\\([0-7]{3}|["\\abfnrtv])')
_ESCAPED = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}
_GIT_HEADER = re.compile(r'diff --git "?a/[^\t\n]+ "?b/')
_MANY = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunk:
    """A contiguous change; texts keep every line's newline."""

    old_start: int
    new_start: int
    """First line in the file after all earlier hunks of the same file were applied."""
    old: str
    new: str
    first_line: int
    """Index of its header among the patch's lines."""
    end_line: int
    """Index of the first line after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """Changes of one file by a patch; a ``None`` path means that the file does not exist on that side."""

    old_path: str | None
    new_path: str | None
    hunks: tuple[Hunk, ...]
    new_mode: str | None
    """Octal mode set by the patch, if any, e.g. ``100755``."""
    binary: bool
    first_line: int
    """Index of its header among the patch's lines."""
    end_line: int
    """Index of the first line of the next file."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the path, or old and new path of a rename."""
        return tuple(dict.fromkeys(path for path in (self.old_path, self.new_path) if path is not None))


def parse_patch(patch: str) -> list[FileChange]:
    """Parse a patch; blank text is an empty patch.

    Raises:
        PatchError: it is not a patch; the message gives the reason.
    """
    _check_headers(patch)
    try:
        files = PatchSet(patch)
    except (UnidiffParseError, ValueError) as error:
        raise PatchError(f"the patch cannot be read: {str(error).strip()[:200]}") from None
    if not files:
        if patch.strip():
            raise PatchError("no file header in the patch")
        return []
    starts = [_first_line(file) for file in files]
    ends = [*starts[1:], patch.rstrip("\n").count("\n") + 1]
    return [_change(file, start, end) for file, start, end in zip(files, starts, ends, strict=True)]


def header_paths(patch: str) -> set[str]:
    """Return the paths in all lines that resemble file headers, even if the patch cannot be parsed."""
    texts = re.findall(r"^(?:---|\+\+\+) ([^\t\n]+)", patch, re.MULTILINE)
    return {path for text in texts if (path := _path(text.rstrip("\r"))) is not None}


def _check_headers(patch: str) -> None:
    """Reject headers on which unidiff's patterns take quadratic time. Raises PatchError."""
    for match in re.finditer(r"^(?:diff --git .*://|Binary file).*", patch, re.MULTILINE):
        line = match[0]
        if line.count(" and ") > _MANY or (line[0] == "d" and not _GIT_HEADER.match(line)):
            raise PatchError(f"the patch cannot be read: no paths in '{line[:80]}'")


def _first_line(file: PatchedFile) -> int:
    in_git_header = any(line.startswith("diff --git ") for line in file.patch_info or ())
    # Without git's header, diff_line_no is that of the second of the two header lines.
    return (file.diff_line_no or 1) - (1 if in_git_header or file.is_binary_file else 2)


def _change(file: PatchedFile, first_line: int, end_line: int) -> FileChange:
    return FileChange(
        old_path=_path(file.source_file),
        new_path=_path(file.target_file),
        hunks=tuple(_hunk(hunk) for hunk in file),
        new_mode=None if file.target_mode == file.source_mode else file.target_mode,
        binary=file.is_binary_file,
        first_line=first_line,
        end_line=end_line,
    )


def _hunk(hunk: RawHunk) -> Hunk:
    old: list[str] = []
    new: list[str] = []
    sides: Iterable[list[str]] = ()
    lines = [line for line in hunk if line.line_type]  # empty lines between files have no type
    for line in lines:
        if line.line_type == "\\":
            for side in sides:
                side[-1] = side[-1].removesuffix("\n")
            continue
        sides = [side for side, types in ((old, " -"), (new, " +")) if line.line_type in types]
        for side in sides:
            side.append(line.value if line.value.endswith("\n") else f"{line.value}\n")
    first = next((line.diff_line_no for line in lines if line.diff_line_no), 2)
    return Hunk(
        old_start=hunk.source_start,
        new_start=hunk.target_start,
        old="".join(old),
        new="".join(new),
        first_line=first - 2,
        end_line=first - 1 + len(lines),
    )


def _path(text: str) -> str | None:
    if text == DEV_NULL:
        return None
    if text.startswith('"'):
        raw = text.strip('"').encode("utf-8", "surrogatepass")
        text = _ESCAPE.sub(_unescaped, raw).decode("utf-8", "surrogateescape")
    return text[2:] if text.startswith(("a/", "b/")) else text


def _unescaped(match: re.Match[bytes]) -> bytes:
    code = match[1]
    return bytes((int(code, 8) & 255,)) if len(code) == 3 else _ESCAPED.get(code, code)
