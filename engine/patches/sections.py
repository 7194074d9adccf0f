"""Sections of a patch by file: filtered by path, hashed, counted."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass

from engine.errors import PatchError
from engine.patches.structure import parse_patch


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePatch:
    """Section of a patch that concerns one file."""

    paths: tuple[str, ...]
    """The path, or old and new path of a rename; empty if the section cannot be parsed."""
    text: str


def split_patch(patch: str) -> list[FilePatch]:
    """Split a patch by file, in order; text before the first file header is dropped.

    A patch that cannot be parsed is one section without paths.
    """
    try:
        changes = parse_patch(patch)
    except PatchError:
        return [FilePatch(paths=(), text=patch)]
    lines = patch.split("\n")
    return [
        FilePatch(paths=change.paths, text=_text(lines[change.first_line : change.end_line]))
        for change in changes
    ]


def _text(lines: list[str]) -> str:
    return "\n".join(lines).rstrip("\n") + "\n"


def keep_files(patch: str, wanted: Callable[[str], bool]) -> tuple[str, list[str]]:
    """Return the sections whose paths are all wanted, and the paths of the dropped sections."""
    kept: list[str] = []
    dropped: list[str] = []
    for part in split_patch(patch):
        if all(wanted(path) for path in part.paths):
            kept.append(part.text)
        else:
            dropped.extend(part.paths)
    return "".join(kept), dropped


def patch_hash(patch: str) -> str:
    """Return the hash of a patch's effect: blob hashes and trailing white space of headers are ignored."""
    lines = [line for line in patch.split("\n") if not re.match(r"index [0-9a-f]+\.\.[0-9a-f]+", line)]
    return hashlib.sha256("\n".join(lines).strip("\n").encode("utf-8", "surrogatepass")).hexdigest()


def is_same_change(one: str, other: str) -> bool:
    """Return whether two patches differ at most in blob hashes and in the headings of their hunks."""
    return _without_headings(one) == _without_headings(other)


def _without_headings(patch: str) -> str:
    return patch_hash(re.sub(r"^(@@ [-+,\d ]+ @@).*", r"\1", patch, flags=re.MULTILINE))


def submission_hash(patch: str) -> str:
    """Return ``patch_hash`` of a submission; empty for a blank one."""
    return patch_hash(patch) if patch.strip() else ""


def count_changed_lines(patch: str) -> int:
    """Count added and removed lines."""
    return sum(1 for line in patch.split("\n") if re.match(r"[+-](?![+-]{2} )", line))


def added_lines(patch: str) -> list[str]:
    """Return the text of the added lines, even if the patch cannot be parsed."""
    return [line[1:] for line in patch.split("\n") if re.match(r"\+(?!\+\+ )", line)]


def removed_lines(patch: str) -> list[str]:
    """Return the text of the removed lines, even if the patch cannot be parsed."""
    return [line[1:] for line in patch.split("\n") if re.match(r"-(?!-- )", line)]


def preimages(patch: str) -> list[str]:
    """Return the hashes, abbreviated as written, of the original contents named by a patch."""
    return list(dict.fromkeys(re.findall(r"^index ([0-9a-f]{4,64})\.\.", patch, re.MULTILINE)))
