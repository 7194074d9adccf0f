"""Reversal of git-format patches."""

from __future__ import annotations

import re

from engine.errors import PatchError
from engine.patches.structure import FileChange, parse_patch

_HUNK = re.compile(r"@@ -(\d+(?:,\d+)?) \+(\d+(?:,\d+)?) @@(.*)")
_SWAPPED = {"new file mode ": "deleted file mode ", "deleted file mode ": "new file mode "}
_PAIRS = {
    "old mode ": "new mode ", "new mode ": "old mode ", "rename from ": "rename to ",
    "rename to ": "rename from ",
}  # fmt: skip


def reverse_patch(patch: str) -> str:
    """Return the patch that undoes ``patch``.

    Raises:
        PatchError: ``patch`` is not a text patch, or has binary or copied files, which cannot be reversed.
    """
    changes = parse_patch(patch)
    if not changes:
        raise PatchError("no file header in the patch")
    lines = patch.rstrip("\n").split("\n")
    return "".join(_reverse_file(change, lines) for change in changes)


def _reverse_file(change: FileChange, lines: list[str]) -> str:
    header = lines[change.first_line : change.hunks[0].first_line if change.hunks else change.end_line]
    if change.binary or any(line.startswith("copy from ") for line in header):
        kind = "binary" if change.binary else "copied"
        raise PatchError(f"a {kind} file cannot be reversed: {', '.join(change.paths)}")
    body: list[str] = []
    for hunk in change.hunks:
        match = _HUNK.match(lines[hunk.first_line])
        if match is None:
            raise PatchError(f"not a hunk header: {lines[hunk.first_line][:80]}")
        body.append(f"@@ -{match[2]} +{match[1]} @@{match[3]}")
        removed: list[str] = []
        added: list[str] = []
        for line in lines[hunk.first_line + 1 : hunk.end_line]:
            _sort(line, removed, added, body)
        body += removed + added
    return "\n".join([*_reverse_header(header), *body]) + "\n"


def _sort(line: str, removed: list[str], added: list[str], body: list[str]) -> None:
    """Collect a block of changes, removals first; context ends the block."""
    if line.startswith("+"):
        removed.append("-" + line[1:])
    elif line.startswith("-"):
        added.append("+" + line[1:])
    elif line.startswith("\\"):
        # The marker belongs to the preceding line. A patch lists removals first, so the list filled last is
        # that of its additions, which are now removals.
        (removed or added or body).append(line)
    else:
        body += removed + added
        removed.clear()
        added.clear()
        body.append(line)


def _reverse_header(header: list[str]) -> list[str]:
    words = ("--- ", "+++ ", *_PAIRS)
    values = {word: line[len(word) :] for line in header for word in words if line.startswith(word)}
    return [_reverse_line(line, values) for line in header]


def _reverse_line(line: str, values: dict[str, str]) -> str:
    if line.startswith("diff --git "):
        both = re.fullmatch(r'diff --git ("?)a/(.+?)"? ("?)b/(.+?)"?', line)
        return f"diff --git {both[3]}a/{both[4]}{both[3]} {both[1]}b/{both[2]}{both[1]}" if both else line
    if line.startswith("--- ") and "+++ " in values:
        return "--- " + _other_side(values["+++ "], "b/", "a/")
    if line.startswith("+++ ") and "--- " in values:
        return "+++ " + _other_side(values["--- "], "a/", "b/")
    for word, other in _PAIRS.items():
        if line.startswith(word):
            return word + values[other]
    for word, other in _SWAPPED.items():
        if line.startswith(word):
            return other + line[len(word) :]
    return re.sub(r"^index (\w+)\.\.(\w+)", r"index \2..\1", line)


def _other_side(name: str, old: str, new: str) -> str:
    if name.startswith(f'"{old}'):
        return f'"{new}' + name[len(old) + 1 :]
    return new + name[len(old) :] if name.startswith(old) else name
