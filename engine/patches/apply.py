"""Application of patches to copies of files on the host, and the paths touched by a patch.

Git parses the patch for both, so that the named paths are the changed ones.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from engine.errors import PatchError
from engine.patches.commands import check_disk_space, private_folder, run_git
from engine.patches.trees import FileState, Tree, check_names, is_plain, read_tree, write_tree


class Changes(NamedTuple):
    """Changes of a tree by a patch."""

    files: dict[str, FileState]
    """New and changed files."""
    deleted: tuple[str, ...]
    """Paths of deleted files, sorted."""

    @property
    def paths(self) -> list[str]:
        """Return every changed path, sorted."""
        return sorted({*self.files, *self.deleted})

    def applied_to(self, tree: Tree) -> Tree:
        """Return a tree with the changes."""
        return {path: state for path, state in tree.items() if path not in self.deleted} | self.files


def encode(patch: str) -> bytes:
    """Return a patch's bytes. Raises PatchError for characters that cannot be encoded."""
    try:
        return patch.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise PatchError("the patch is not Unicode text") from None


def touched(patch: str) -> list[str]:
    """Return the paths that a patch creates, changes, removes or copies from, sorted.

    Raises:
        PatchError: git cannot read the patch, or it names too many or too deep paths.
    """
    data = encode(patch)
    if not patch.strip():
        return []
    names: set[str] = set()
    with private_folder() as name:
        # Git names only the new side of each file, and with --reverse only the old side.
        for direction in ([], ["--reverse"]):
            done = run_git(Path(name), "apply", "--numstat", "-z", *direction, "-", stdin=data)
            if done.exit_code != 0:
                raise PatchError(f"the patch does not apply: {done.stderr}")
            names.update(os.fsdecode(row.split(b"\t", 2)[2]) for row in done.output.split(b"\0") if row)
    paths = sorted(name for name in names if is_plain(name))
    check_names(paths)
    return paths


def apply_patch(before: Tree, patch: str) -> Changes:
    """Apply a patch to files with ``git apply``.

    Args:
        before: every existing file among ``touched(patch)``.

    Raises:
        PatchError: the patch does not apply, or leads out of the tree; the message contains git's output.
        HostError: this machine lacks a program, time or disk space.
    """
    data = encode(patch)
    with private_folder() as name:
        folder = Path(name)
        write_tree(folder / "tree", before)
        done = run_git(folder, "apply", "--whitespace=nowarn", "-", stdin=data)
        if done.exit_code != 0:
            check_disk_space(folder, data)
            raise PatchError(f"the patch does not apply: {done.stderr}")
        return changes_between(before, read_tree(folder / "tree"))


def changes_between(before: Tree, after: Tree) -> Changes:
    """Return the changes from one tree to another."""
    files = {name: state for name, state in after.items() if not state.same(before.get(name))}
    return Changes(files, tuple(sorted(set(before) - set(after))))
