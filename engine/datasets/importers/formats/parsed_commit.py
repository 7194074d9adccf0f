"""Conversion of R2E-Gym's ``ParsedCommit`` JSON into git-format patches.

A commit is stored as parsed hunks and the whole old and new text of every file. The patch is assembled from
the hunks, as in R2E-Gym. If it does not turn the old text into the new one (renames, unusual line endings),
the patch is computed from the two texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from engine.errors import DatasetError
from engine.patches.diff import diff_texts

_SIGNS = {"context": " ", "added": "+", "deleted": "-", "note": "\\ "}
_TEST_FOLDERS = frozenset({"tests", "Tests", "test", "Test"})
_NOTHING = "/dev/null"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPatches:
    """A commit as patches."""

    code: str
    """The gold patch: all changes except tests."""
    tests: str
    left_out: tuple[str, ...]
    """Paths of binary files, whose content the format does not include."""
    old_commit: str
    new_commit: str
    message: str


def read_commit(commit: Mapping[str, Any], *, field: str) -> CommitPatches:
    """Return the patches of a parsed commit. Raises DatasetError with a dotted field below ``field``."""
    differences = commit.get("file_diffs")
    if not isinstance(differences, list):
        raise DatasetError("missing or not a list", field=f"{field}.file_diffs")
    parts: dict[bool, list[str]] = {True: [], False: []}
    left_out = []
    for number, difference in enumerate(differences):
        where = f"{field}.file_diffs.{number}"
        try:
            path = difference["header"]["file"]["path"]
            if difference.get("is_binary_file"):
                left_out.append(path)
            else:
                parts[_is_test(path)].append(_file_patch(path, difference))
        except (KeyError, TypeError, ValueError) as error:
            raise DatasetError(f"no file difference: {error!r}", field=where) from None
    return CommitPatches(
        code="".join(parts[False]),
        tests="".join(parts[True]),
        left_out=tuple(left_out),
        old_commit=str(commit.get("old_commit_hash") or ""),
        new_commit=str(commit.get("new_commit_hash") or ""),
        message=str(commit.get("commit_message") or ""),
    )


def _is_test(path: str) -> bool:
    """Return whether R2E-Gym itself classifies a path as a test."""
    parts = PurePosixPath(path).parts
    name = parts[-1] if parts else ""
    return name.endswith("_test.py") or name.startswith("test_") or bool(_TEST_FOLDERS & set(parts))


def _file_patch(path: str, difference: Mapping[str, Any]) -> str:
    minus, plus = _side(difference.get("minus_file")), _side(difference.get("plus_file"))
    old_path = path if minus in ("", _NOTHING) else minus.removeprefix("a/")
    new_path = path if plus in ("", _NOTHING) else plus.removeprefix("b/")
    lines = [f"diff --git a/{old_path} b/{new_path}"]
    misc = difference["header"].get("misc_line")
    if misc:
        lines.append(str(misc))
    elif old_path != new_path:
        lines += [f"rename from {old_path}", f"rename to {new_path}"]
    hunks = difference.get("hunks") or []
    if hunks:
        lines += [f"--- {minus or f'a/{old_path}'}", f"+++ {plus or f'b/{new_path}'}"]
    for hunk in hunks:
        lines += _hunk_lines(hunk)
    before, after = _content(difference, "old_file_content"), _content(difference, "new_file_content")
    if before is None or after is None or not hunks or _same(_applied(before, hunks), after):
        return "\n".join(lines) + "\n"
    computed = diff_texts(path, before, after)
    header, _, body = computed.partition("--- ")
    extra = f"{misc}\n" if misc and "file mode" in str(misc) else ""
    return f"{header}{extra}--- {body}" if body else ""


def _side(file: Any) -> str:
    return str(file["path"]) if isinstance(file, dict) and file.get("path") else ""


def _content(difference: Mapping[str, Any], name: str) -> str | None:
    value = difference.get(name)
    if value == _NOTHING:
        return ""
    return value if isinstance(value, str) else None


def _range(part: Mapping[str, Any]) -> str:
    length = part.get("length")
    return f"{int(part['start'])}" if length is None else f"{int(part['start'])},{int(length)}"


def _hunk_lines(hunk: Mapping[str, Any]) -> Iterator[str]:
    descriptor = hunk["descriptor"]
    section = descriptor.get("section")
    head = f"@@ -{_range(descriptor['old_range'])} +{_range(descriptor['new_range'])} @@"
    yield f"{head} {section}" if section else head
    for line in hunk["line_group"]["all_lines"]:
        yield f"{_SIGNS[line['type']]}{line['content']}"


def _applied(before: str, hunks: list[Mapping[str, Any]]) -> str | None:
    """Apply hunks to a text; return None if they do not match."""
    old = before.split("\n")
    new: list[str] = []
    position = 0
    for hunk in hunks:
        start = int(hunk["descriptor"]["old_range"]["start"])
        length = hunk["descriptor"]["old_range"].get("length")
        begin = start if length == 0 else start - 1
        new += old[position:begin]
        position = begin
        for line in hunk["line_group"]["all_lines"]:
            if line["type"] in ("context", "deleted"):
                if position >= len(old) or old[position] != line["content"]:
                    return None
                position += 1
            if line["type"] in ("context", "added"):
                new.append(line["content"])
    return "\n".join(new + old[position:])


def _same(left: str | None, right: str) -> bool:
    return left is not None and left.rstrip("\n") == right.rstrip("\n")
