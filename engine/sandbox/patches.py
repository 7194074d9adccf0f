"""Making and applying git-format patches on the host, out of reach of anything inside a sandbox.

Only file states (mode and content) come in and go out; git itself works on copies in a private temporary
folder with no configuration, no repository and no attributes but ours. Contents that are not UTF-8 travel as
git's binary patches, so a patch is always clean text. To support another kind of file, extend ``write_tree``
and ``read_tree``.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from engine.errors import PatchError

IGNORED = (".git", "__pycache__", ".pytest_cache")
"""Folders that are never part of a patch, at any depth."""
_GIT_S = 120.0
_SHOWN, _SAID = 200, 2000
_NOT_A_FILE = frozenset({errno.ENAMETOOLONG, errno.ENOENT, errno.EINVAL, errno.EILSEQ})
"""Of a name or a link's target that no file system takes; other errors are this machine's."""


class FileState(NamedTuple):
    """A file as git sees it."""

    mode: int
    """``st_mode``; of the permissions only the owner's execute bit counts."""
    data: bytes
    """Content, or a symlink's target."""

    @property
    def git_mode(self) -> int:
        """0o100644, 0o100755 or 0o120000."""
        if stat.S_ISLNK(self.mode):
            return 0o120000
        return 0o100755 if self.mode & 0o100 else 0o100644

    def same(self, other: FileState | None) -> bool:
        """Whether git would see no difference."""
        return other is not None and self.git_mode == other.git_mode and self.data == other.data


Tree = Mapping[str, FileState]


def run_git(folder: Path, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run git in a ``private_folder``'s tree, without anybody's configuration. Raises PatchError."""
    env = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(folder),
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(folder.parent),
    }
    command = ["git", "-c", "core.attributesFile=" + str(folder / "attributes"), "-c", "core.quotePath=true"]
    try:
        return subprocess.run(
            [*command, *arguments],
            cwd=folder / "tree",
            env=env,
            input=stdin,
            capture_output=True,
            timeout=_GIT_S,
        )
    except subprocess.TimeoutExpired:
        raise PatchError(f"git took more than {_GIT_S:g} s over the files") from None


def private_folder(attributes: str = "") -> tempfile.TemporaryDirectory[str]:
    """A folder for ``run_git``: an empty ``tree`` and git's attributes."""
    folder = tempfile.TemporaryDirectory(prefix="trainyard-patch-")
    (Path(folder.name) / "tree").mkdir()
    (Path(folder.name) / "attributes").write_text(attributes)
    return folder


def write_tree(folder: Path, tree: Tree) -> None:
    """Put files below an empty folder. Raises PatchError where that would lead out of it, or cannot be."""
    folder.mkdir(exist_ok=True)
    for name, state in tree.items():
        parts = name.split("/")
        above = ("/".join(parts[:count]) for count in range(1, len(parts)))
        if not is_plain(name) or any(parent in tree for parent in above):  # a parent may be a symlink
            raise PatchError(f"no file can be at {name[:_SHOWN]!r}")
        try:
            _write_one(folder / name, state)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno not in _NOT_A_FILE:
                raise
            raise PatchError(f"no file can be as {name[:_SHOWN]!r} is: {error}"[:_SAID]) from None


def _write_one(path: Path, state: FileState) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if stat.S_ISLNK(state.mode):
        path.symlink_to(os.fsdecode(state.data))
    else:
        path.write_bytes(state.data)
        path.chmod(0o755 if state.git_mode == 0o100755 else 0o644)


def read_tree(folder: Path) -> dict[str, FileState]:
    """Every file and symlink below a folder, by its path relative to it."""
    tree: dict[str, FileState] = {}
    for parent, folders, names in os.walk(folder):
        for name in names + [name for name in folders if os.path.islink(os.path.join(parent, name))]:
            path = os.path.join(parent, name)
            mode = os.lstat(path).st_mode
            data = os.fsencode(os.readlink(path)) if stat.S_ISLNK(mode) else Path(path).read_bytes()
            tree[os.path.relpath(path, folder)] = FileState(mode, data)
    return tree


def _is_text(state: FileState | None) -> bool:
    if state is None:
        return True
    try:
        state.data.decode()
    except UnicodeDecodeError:
        return False
    return True


def make_patch(before: Tree, after: Tree) -> str:
    """The git-format patch that turns ``before`` into ``after``; empty when there is no difference."""
    names = sorted(
        name for name in {*before, *after}
        if name not in after or not after[name].same(before.get(name))
    )  # fmt: skip
    text = [name for name in names if _is_text(before.get(name)) and _is_text(after.get(name))]
    binary = [name for name in names if name not in set(text)]
    return "".join(
        _diff(
            {n: before[n] for n in group if n in before},
            {n: after[n] for n in group if n in after},
            attributes,
        )
        for group, attributes in ((text, ""), (binary, "* -diff\n"))
        if group
    )


def _diff(before: Tree, after: Tree, attributes: str) -> str:
    with private_folder(attributes) as name:
        folder = Path(name)
        write_tree(folder / "tree" / "a", before)
        write_tree(folder / "tree" / "b", after)
        options = ["--no-index", "--binary", "--full-index", "--no-renames", "--no-prefix", "--no-color"]
        done = run_git(folder, "diff", *options, "--no-ext-diff", "--no-textconv", "a", "b")
    if done.returncode not in (0, 1):
        raise PatchError(f"git could not compare the files: {done.stderr.decode(errors='replace')[:_SAID]}")
    return _SAME_SIDE.sub(_both_sides, done.stdout.decode())


_SAME_SIDE = re.compile(r'^diff --git ("?)([ab])/(.*)("?) \1\2/\3\4$', re.MULTILINE)


def _both_sides(match: re.Match[str]) -> str:
    # Without an index git names an added or deleted file's only side twice; everybody expects a/ and b/.
    quote, _, name, end = match.groups()
    return f"diff --git {quote}a/{name}{end} {quote}b/{name}{end}"


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


def is_plain(name: str) -> bool:
    """Whether a name stays below the folder that it is put into."""
    return bool(name) and "\0" not in name and not any(part in ("", ".", "..") for part in name.split("/"))


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


def apply_to(before: Tree, patch: str) -> tuple[dict[str, FileState], list[str]]:
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
