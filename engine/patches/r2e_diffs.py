"""Patches as the ``file_diffs`` of R2E-Gym's ``ParsedCommit``: hunks by line, and both texts of each file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from engine.patches.structure import FileChange, parse_patch
from engine.patches.trees import Tree

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@ ?(.*)")
_TYPES = {" ": "context", "+": "added", "-": "deleted", "\\": "note"}
_INDEX = re.compile(r"index ([0-9a-f]+)\.\.([0-9a-f]+)(?: (\d+))?$")
_NOTHING = "/dev/null"


def file_differences(patch: str, before: Tree | None, after: Tree | None) -> list[dict[str, Any]]:
    """Return the differences of a patch, file by file.

    Args:
        patch: a patch in git's format.
        before, after: the files that it names; None leaves their texts out (null).

    Raises:
        PatchError: the patch cannot be read.
    """
    lines = patch.split("\n")
    return [
        _difference(change, lines[change.first_line : change.end_line], before, after)
        for change in parse_patch(patch)
    ]


def _difference(
    change: FileChange, lines: Sequence[str], before: Tree | None, after: Tree | None
) -> dict[str, Any]:
    path = change.new_path or change.old_path or ""
    index = next((match for line in lines if (match := _INDEX.match(line))), None)
    misc = next((line for line in lines if line.startswith(("new file mode", "deleted file mode"))), None)
    return {
        "old_file_content": _text(before, change.old_path),
        "new_file_content": _text(after, change.new_path),
        "header": {"file": {"path": path}, "misc_line": misc},
        "index_line": {
            "old_commit_hash": index[1] if index else "",
            "new_commit_hash": index[2] if index else "",
            "mode": (index[3] or "") if index else "",
        },
        "is_binary_file": change.binary,
        "binary_line": None,
        "minus_file": {"path": f"a/{change.old_path}" if change.old_path else _NOTHING},
        "plus_file": {"path": f"b/{change.new_path}" if change.new_path else _NOTHING},
        "hunks": _hunks(lines),
    }


def _text(tree: Tree | None, path: str | None) -> str | None:
    if tree is None:
        return None
    state = tree.get(path) if path is not None else None
    return "" if state is None else state.data.decode(errors="replace")


def _hunks(lines: Sequence[str]) -> list[dict[str, Any]]:
    hunks: list[dict[str, Any]] = []
    for line in lines:
        if header := _HUNK.match(line):
            old_start, old_length, new_start, new_length, section = header.groups()
            descriptor = {
                "old_range": {"start": int(old_start), "length": int(old_length) if old_length else None},
                "new_range": {"start": int(new_start), "length": int(new_length) if new_length else None},
                "section": section,
            }
            entities: dict[str, list[Any]] = {
                f"{change}_entities": [] for change in ("modified", "added", "deleted")
            }
            hunks.append({"descriptor": descriptor, "line_group": {"all_lines": []}, **entities})
        elif hunks and line[:1] in _TYPES:
            content = line[2:] if line[0] == "\\" else line[1:]
            hunks[-1]["line_group"]["all_lines"].append({"content": content, "type": _TYPES[line[0]]})
    return hunks
