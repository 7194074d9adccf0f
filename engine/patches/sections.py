"""Git-format patches as text: taken apart by file, filtered by path, hashed, counted."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePatch:
    """The part of a patch that concerns one file."""

    paths: tuple[str, ...]
    """Every path it names: one, or old and new of a rename."""
    text: str


def split_patch(patch: str) -> list[FilePatch]:
    """Parts of a git-format patch, in order; text before the first file header is dropped.

    Hunks are walked by their line counts, so a hostile patch cannot hide a second file's header
    behind what looks like another file's content.
    """
    parts: list[tuple[list[str], list[str]]] = []
    old_left = new_left = 0
    for line in patch.split("\n"):
        if old_left > 0 or new_left > 0:
            old_left -= line[:1] in (" ", "-", "")
            new_left -= line[:1] in (" ", "+", "")
            parts[-1][1].append(line)
            continue
        if line.startswith("diff --git ") or (not parts and line.startswith("--- ")):
            parts.append(([], []))
        if not parts:
            continue
        hunk = re.match(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@", line)
        if hunk:
            old_left, new_left = (1 if count is None else line_count(count) for count in hunk.groups())
        parts[-1][0].extend(_header_paths(line))
        parts[-1][1].append(line)
    return [
        FilePatch(paths=tuple(dict.fromkeys(paths)), text="\n".join(lines).rstrip("\n") + "\n")
        for paths, lines in parts
    ]


def line_count(digits: str) -> int:
    """A number of lines in a hunk's header; one beyond all patches stays beyond them, however long it is."""
    return int(digits.lstrip("0")[:18] or "0")


def keep_files(patch: str, wanted: Callable[[str], bool]) -> tuple[str, list[str]]:
    """The parts whose every path is wanted, and the paths of the parts that were dropped."""
    kept: list[str] = []
    dropped: list[str] = []
    for part in split_patch(patch):
        if all(wanted(path) for path in part.paths):
            kept.append(part.text)
        else:
            dropped.extend(part.paths)
    return "".join(kept), dropped


def patch_hash(patch: str) -> str:
    """Hash of what a patch does: blob hashes and trailing white space of the headers do not count."""
    lines = [line for line in patch.split("\n") if not re.match(r"index [0-9a-f]+\.\.[0-9a-f]+", line)]
    return hashlib.sha256("\n".join(lines).strip("\n").encode("utf-8", "surrogatepass")).hexdigest()


def count_changed_lines(patch: str) -> int:
    """Added plus removed lines."""
    return sum(1 for line in patch.split("\n") if re.match(r"[+-](?![+-]{2} )", line))


def _header_paths(line: str) -> list[str]:
    """Paths that a line outside hunks names."""
    match = re.match(r"(?:---|\+\+\+) (.+)", line)
    if match:
        name = _unquote(match[1].split("\t")[0].rstrip("\r"))
        return [] if name == "/dev/null" else [name.partition("/")[2] or name]
    match = re.match(r"(?:rename|copy) (?:from|to) (.+)", line)
    if match:
        return [_unquote(match[1].rstrip("\r"))]
    match = re.match(r"diff --git (.+)", line)
    if match:
        both = re.fullmatch(r'"?a/(.+?)"? "?b/(.+?)"?', match[1].rstrip("\r"))
        quoted = '"' if match[1].startswith('"') else ""
        return [_unquote(quoted + name + quoted) for name in both.groups()] if both else [match[1]]
    return []


def _unquote(name: str) -> str:
    """Undo git's C-style quoting of unusual paths."""
    if not (len(name) > 1 and name[0] == name[-1] == '"'):
        return name
    plain = re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m[1], 8) & 255]), name[1:-1].encode())
    return re.sub(rb"\\(.)", rb"\1", plain).decode("utf-8", "replace")
