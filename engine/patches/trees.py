"""File trees as git sees them, on the host and inaccessible from any sandbox.

To support another kind of file, extend ``write_tree`` and ``read_tree``.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from engine.errors import PatchError

IGNORED = (".git", "__pycache__", ".pytest_cache")
"""Names of folders never included in a patch, at any depth."""
MAX_BYTES = 256 << 20
"""Maximum total content of a tree that is read, bytes."""
MAX_FILES = 10_000
"""Maximum number of files in a patch."""
MAX_DEPTH = 200
"""Maximum number of nested folders in a path; much deeper ones overflow the stack of recursive code."""
_SHOWN, _SAID = 200, 2000
_NOT_A_FILE = frozenset({errno.ENAMETOOLONG, errno.ENOENT, errno.EINVAL, errno.EILSEQ})
"""Error numbers of invalid names or link targets; other errors are faults of this machine."""


class FileState(NamedTuple):
    """A file as git sees it."""

    mode: int
    """``st_mode``; of the permissions only the owner's execute bit counts."""
    data: bytes
    """Content, or a symlink's target."""

    @property
    def git_mode(self) -> int:
        """Return git's mode: 0o100644, 0o100755 or 0o120000."""
        if stat.S_ISLNK(self.mode):
            return 0o120000
        return 0o100755 if self.mode & 0o100 else 0o100644

    def same(self, other: FileState | None) -> bool:
        """Return whether git sees no difference between two states."""
        return other is not None and self.git_mode == other.git_mode and self.data == other.data


Tree = Mapping[str, FileState]


def is_plain(name: str) -> bool:
    """Return whether a name stays below the folder it is placed in."""
    return bool(name) and "\0" not in name and not any(part in ("", ".", "..") for part in name.split("/"))


def path_below(folder: str, path: str) -> str:
    """Return a normalised path: relative to a folder if it is below it, else absolute.

    Args:
        folder: absolute.
        path: relative to the folder, or absolute.
    """
    absolute = posixpath.normpath(posixpath.join(folder, path))
    name = posixpath.relpath(absolute, folder)
    return name if is_plain(name) else absolute


def check_names(names: Sequence[str]) -> None:
    """Check the paths that a patch names. Raises PatchError for too many or too deep ones."""
    if len(names) > MAX_FILES:
        raise PatchError(f"a patch of {len(names)} files; at most {MAX_FILES} are allowed")
    for name in names:
        if (depth := name.count("/")) > MAX_DEPTH:
            raise PatchError(
                f"a path through {depth} folders, at most {MAX_DEPTH} are allowed: {name[:_SHOWN]!r}"
            )


def write_tree(folder: Path, tree: Tree) -> None:
    """Write files below an empty folder. Raises PatchError for too many, and for paths that are invalid."""
    check_names(list(tree))
    folder.mkdir(exist_ok=True)
    for name, state in tree.items():
        parts = name.split("/")
        parents = ("/".join(parts[:count]) for count in range(1, len(parts)))
        if not is_plain(name) or any(parent in tree for parent in parents):  # a parent may be a symlink
            raise PatchError(f"no file can be at {name[:_SHOWN]!r}")
        try:
            _write_one(folder / name, state)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno not in _NOT_A_FILE:
                raise
            raise PatchError(f"cannot create {name[:_SHOWN]!r}: {error}"[:_SAID]) from None


def _write_one(path: Path, state: FileState) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if stat.S_ISLNK(state.mode):
        path.symlink_to(os.fsdecode(state.data))
    else:
        path.write_bytes(state.data)
        path.chmod(0o755 if state.git_mode == 0o100755 else 0o644)


def read_tree(folder: Path) -> dict[str, FileState]:
    """Read every file and symlink below a folder, by its path relative to it.

    Raises:
        PatchError: the files are larger than ``MAX_BYTES`` in total.
    """
    tree: dict[str, FileState] = {}
    room = MAX_BYTES
    for parent, folders, names in os.walk(folder):
        for name in [*names, *folders]:
            path = Path(parent, name)
            info = path.lstat()
            if stat.S_ISDIR(info.st_mode):
                continue
            mode, room = info.st_mode, room - info.st_size
            if room < 0:
                raise PatchError(f"the patched files are larger than {MAX_BYTES >> 20} MiB")
            if stat.S_ISLNK(mode):
                target = os.readlink(path)  # noqa: PTH115  a Path would be normalised
                tree[str(path.relative_to(folder))] = FileState(mode, os.fsencode(target))
            elif stat.S_ISREG(mode):
                tree[str(path.relative_to(folder))] = FileState(mode, path.read_bytes())
    return tree
