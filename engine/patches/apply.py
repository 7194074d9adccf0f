"""Applies patches to copies of files on the host, and names the files that a patch touches."""

from __future__ import annotations

import os
import re
from pathlib import Path

from engine.errors import PatchError
from engine.patches.commands import private_folder, run_git
from engine.patches.trees import FileState, Tree, is_plain, read_tree, write_tree

_SAID = 2000


def touched(patch: str) -> list[str]:
    """Names of the files that a patch may read or write: a superset, parsed from its headers."""
    names: set[str] = set()
    for line in patch.split("\n"):
        if line.startswith("diff --git "):
            names.update(_header_names(line[11:].rstrip("\r")))
        elif line.startswith(("--- ", "+++ ")):
            names.update(_stripped(_unquote(line[4:].split("\t")[0].rstrip("\r"))))
        elif line.startswith(("rename from ", "rename to ", "copy from ", "copy to ")):
            names.add(_unquote(line.split(" ", 2)[2].rstrip("\r")))
    return sorted(name for name in names if is_plain(name))


def _header_names(rest: str) -> list[str]:
    if '"' in rest:
        parts = re.findall(r'"(?:[^"\\]|\\.)*"|\S+', rest)
    else:  # names may hold spaces, but then both sides are the same name
        parts = [rest[: len(rest) // 2], rest[len(rest) // 2 + 1 :]]
    return [name for part in parts for name in _stripped(_unquote(part))]


def _stripped(name: str) -> list[str]:
    return [name.partition("/")[2]] if "/" in name else []


def _unquote(name: str) -> str:
    if len(name) < 2 or name[0] != '"' or name[-1] != '"':
        return name
    escapes = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
    out = bytearray()
    for plain, octal, char in re.findall(r"([^\\]+)|\\([0-3][0-7]{2})|\\(.)", name[1:-1]):
        out += plain.encode("utf-8", "surrogateescape") if plain else bytes(
            [int(octal, 8) if octal else escapes.get(char, ord(char) & 255)]
        )  # fmt: skip
    return os.fsdecode(bytes(out))


def apply_patch(before: Tree, patch: str) -> tuple[dict[str, FileState], list[str]]:
    """Apply a patch to files: what is new or different afterwards, and which names are gone.

    Args:
        before: every existing file among ``touched(patch)``.

    Raises:
        PatchError: it does not apply, or leads out of the tree; git's own words are in the message.
    """
    with private_folder() as name:
        folder = Path(name)
        write_tree(folder / "tree", before)
        done = run_git(
            folder, "apply", "--whitespace=nowarn", "-", stdin=patch.encode("utf-8", "surrogateescape")
        )
        if done.returncode != 0:
            raise PatchError(
                f"the patch does not apply: {done.stderr.decode(errors='replace').strip()[:_SAID]}"
            )
        after = read_tree(folder / "tree")
    changed = {name: state for name, state in after.items() if not state.same(before.get(name))}
    return changed, sorted(set(before) - set(after))
