"""Program that reads the history of an untrusted repository, in a sandbox (``run_contained``).

    REPOSITORY MAX_COMMITS SUFFIX…

It writes ``commits.jsonl``, newest commit first, one object a line::

    {"sha", "parents", "date", "message", "patch", "contents",
     "files": [{"path", "added", "deleted", "mode"}]}

``added`` and ``deleted`` are None of binary files. ``patch`` (the whole change in git's format) and
``contents`` (path → [old text, new text]) are None for merges, root commits, links, submodules, names that
are no UTF-8, and changes beyond the limits, or with code that is large or no UTF-8.
A text is None if there is none. Only files with one of the suffixes and those that tests may read have
contents.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MAX_FILES, MAX_PATCH_BYTES, MAX_FILE_BYTES = 40, 200_000, 1 << 20
"""Limits of a change whose patch and contents are written."""
_MAX_MESSAGE = 10_000
MAX_BYTES = 256 << 20
"""Size of ``commits.jsonl`` after which older commits are left out."""
_LAST_DATE = 4_102_444_800
"""Start of the year 2100, Unix time; later dates are forged."""
_PLAIN = {"000000", "100644", "100755"}
"""Modes of regular files, and of none."""
_TEST_SUPPORT = re.compile("test|fixture|snapshot|golden|mock|stub|spec|data", re.IGNORECASE)
"""Names of files besides code that tests may read."""
_TOO_MANY_FILES = 1_000
"""Files of one commit that are listed at most."""


class Repository:
    """A bare repository, read by git without its attributes, hooks and external programs."""

    def __init__(self, folder: str) -> None:
        self._git = [
            "git", "-c", "safe.directory=*", "-c", "protocol.allow=never",
            "-c", "core.attributesFile=/dev/null", "-c", "core.quotePath=false", f"--git-dir={folder}",
        ]  # fmt: skip
        self._objects = subprocess.Popen(
            [*self._git, "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def run(self, *arguments: str) -> bytes:
        """Return the output of a git command."""
        return subprocess.run([*self._git, *arguments], stdout=subprocess.PIPE, check=True).stdout

    def has_larger(self, names: set[str], most: int) -> bool:
        """Return whether an object is larger than ``most`` bytes."""
        wanted = "\n".join(name for name in names if name.strip("0")).encode()
        command = [*self._git, "cat-file", "--batch-check=%(objectsize)"]
        sizes = subprocess.run(command, input=wanted, stdout=subprocess.PIPE, check=True).stdout.split()
        return any(not size.isdigit() or int(size) > most for size in sizes)

    def read(self, name: str, most: int) -> bytes | None:
        """Return the content of an object; None if it is missing or larger than ``most``."""
        assert self._objects.stdin is not None
        assert self._objects.stdout is not None
        self._objects.stdin.write(name.encode() + b"\n")
        self._objects.stdin.flush()
        header = self._objects.stdout.readline().split()
        if header[-1] == b"missing":
            return None
        left = int(header[2]) + 1  # a line feed follows the object
        content = self._objects.stdout.read(left) if left <= most else None
        while content is None and left > 0:
            left -= len(self._objects.stdout.read(min(1 << 16, left)))
        return None if content is None else content[:-1]


def commits(repository: Repository, count: int, suffixes: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield the newest commits of HEAD, with the contents of files with one of the suffixes."""
    listed = repository.run("rev-list", f"--max-count={count}", "--parents", "--timestamp", "HEAD")
    for line in listed.decode().splitlines():
        date, sha, *parents = line.split()
        raw = repository.read(sha, 1 << 20) or b""
        message = raw.partition(b"\n\n")[2].decode("utf-8", "replace")[:_MAX_MESSAGE]
        commit: dict[str, Any] = {
            "sha": sha, "parents": parents, "date": min(max(int(date), 0), _LAST_DATE),
            "message": message, "files": [], "patch": None, "contents": None,
        }  # fmt: skip
        if len(parents) == 1:
            _add_change(repository, commit, parents[0], suffixes)
        yield commit


def _add_change(
    repository: Repository, commit: dict[str, Any], parent: str, suffixes: tuple[str, ...]
) -> None:
    options = ("-r", "-z", "--no-renames", "--no-ext-diff", "--no-textconv")
    raw = repository.run("diff-tree", "--raw", "--full-index", *options, parent, commit["sha"]).split(b"\0")
    counts = repository.run("diff-tree", "--numstat", *options, parent, commit["sha"]).split(b"\0")
    lines = {fields[2]: fields[:2] for entry in counts if (fields := entry.split(b"\t", 2))[2:]}
    blobs: dict[str, tuple[str, str]] = {}
    is_readable = True
    for header, name in zip(raw[0::2], raw[1::2], strict=False):
        if len(commit["files"]) == _TOO_MANY_FILES:
            break
        old_mode, new_mode, old, new, _ = header.decode().lstrip(":").split()
        path = name.decode("utf-8", "replace")
        is_readable &= path.encode() == name and {old_mode, new_mode} <= _PLAIN
        added, deleted = lines.get(name, (b"-", b"-"))
        is_text = added != b"-"
        commit["files"].append({
            "path": path, "mode": new_mode,
            "added": int(added) if is_text else None, "deleted": int(deleted) if is_text else None,
        })  # fmt: skip
        blobs[path] = old, new
    if not is_readable or not 0 < len(blobs) <= MAX_FILES:
        return
    if sum((file["added"] or 0) + (file["deleted"] or 0) for file in commit["files"]) * 4 > MAX_PATCH_BYTES:
        return
    if repository.has_larger({name for pair in blobs.values() for name in pair}, MAX_FILE_BYTES):
        return
    patch = repository.run(
        "diff-tree", "-p", "--binary", "--full-index", "-r", "--no-renames", "--no-ext-diff", "--no-textconv",
        parent, commit["sha"],
    )  # fmt: skip
    contents = {
        path: [_text(repository, old), _text(repository, new)]
        for path, (old, new) in blobs.items()
        if path.endswith(suffixes) or _TEST_SUPPORT.search(path)
    }
    if any(
        path.endswith(suffixes) and text is None and name.strip("0")
        for path, texts in contents.items()
        for text, name in zip(texts, blobs[path], strict=True)
    ):
        return
    if len(patch) <= MAX_PATCH_BYTES:
        commit["patch"] = patch.decode("utf-8", "replace")
        commit["contents"] = contents


def _text(repository: Repository, name: str) -> str | None:
    """Return the text of a file; None if there is none, or it is no UTF-8."""
    if not name.strip("0"):
        return None
    content = repository.read(name, MAX_FILE_BYTES)
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        return None


def main(folder: str, count: int, *suffixes: str) -> None:
    """Write ``commits.jsonl`` to the current folder."""
    repository = Repository(folder)
    with Path("commits.jsonl").open("w", encoding="utf-8") as out:
        for commit in commits(repository, count, suffixes):
            out.write(json.dumps(commit) + "\n")
            if out.tell() > MAX_BYTES:
                break  # older commits are left out


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
    except (OSError, ValueError, IndexError, MemoryError, subprocess.CalledProcessError) as error:
        sys.exit(f"its history cannot be read: {type(error).__name__}: {error}")
