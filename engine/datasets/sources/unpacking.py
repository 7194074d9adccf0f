"""Program that unpacks untrusted files in a sandbox (``engine.sandbox.local.contained``); needs no library.

    sdist ARCHIVE            one top folder of a source distribution into ``tree/``
    wheels FOLDER            pure-Python wheels as pip installs them, compiled
    repository GIT_DIRECTORY REVISION
                             the files of a commit into ``tree/``; no checkout: no filters, hooks, attributes

Only regular files are written; links and devices are skipped. Paths outside of the target and content beyond
the limits end the program; the last line on standard error has the reason.
"""

from __future__ import annotations

import compileall
import os
import py_compile
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Protocol

MAX_FILES = 50_000
MAX_BYTES = 1 << 30
MAX_FILE_BYTES = 128 << 20
_CHUNK = 1 << 20
_INSTALLED_DATA = ("purelib", "platlib")


class _Readable(Protocol):
    def read(self, count: int, /) -> bytes: ...


class _Target:
    """Target folder of unpacked files; counts files and bytes."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files = 0
        self._bytes = 0

    def write(self, name: str, stream: _Readable, *, executable: bool = False) -> None:
        """Copy one file to ``name`` below the root."""
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
            sys.exit(f"the name {name[:200]!r} leads out of the archive")
        self._files += 1
        if self._files > MAX_FILES:
            sys.exit(f"more than {MAX_FILES} files")
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        size = 0
        with target.open("wb") as file:
            while chunk := stream.read(_CHUNK):
                size += len(chunk)
                self._bytes += len(chunk)
                if size > MAX_FILE_BYTES or self._bytes > MAX_BYTES:
                    sys.exit(f"{name[:200]!r} makes it larger than {MAX_BYTES >> 20} MiB")
                file.write(chunk)
        target.chmod(0o755 if executable else 0o644)


def unpack_sdist(archive: Path, target: Path) -> None:
    """Unpack a source distribution; its single top folder becomes ``target``."""
    files = _zipped(archive) if zipfile.is_zipfile(archive) else _tarred(archive)
    tree = _Target(target)
    for name, stream, executable in files:
        top, _, inside = name.removeprefix("./").partition("/")
        if top and inside:
            tree.write(inside, stream, executable=executable)


def unpack_wheels(folder: Path, target: Path) -> None:
    """Install pure-Python wheels into one folder and compile them."""
    tree = _Target(target)
    for wheel in sorted(folder.glob("*.whl")):
        for name, stream, executable in _zipped(wheel):
            parts = PurePosixPath(name).parts
            if parts and parts[0].endswith(".data"):
                if len(parts) < 3 or parts[1] not in _INSTALLED_DATA:
                    continue
                name = "/".join(parts[2:])
            tree.write(name, stream, executable=executable)
    # By content, not by time: copies and mounts of the folder must not make bytecode stale.
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(target, quiet=2, invalidation_mode=mode)


def unpack_repository(repository: Path, target: Path, revision: str) -> None:
    """Write the files of a repository's HEAD to the target."""
    git = ["git", "-c", "safe.directory=*", "-c", "protocol.allow=never", f"--git-dir={repository}"]
    listed = subprocess.run([*git, "ls-tree", "-r", "-z", revision], stdout=subprocess.PIPE, check=True)
    tree = _Target(target)
    with subprocess.Popen(
        [*git, "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as objects:
        assert objects.stdin is not None
        assert objects.stdout is not None
        for entry in listed.stdout.split(b"\0"):
            info, _, name = entry.partition(b"\t")
            if not info.startswith((b"100644 ", b"100755 ")):
                continue  # links, submodules
            objects.stdin.write(info.split()[2] + b"\n")
            objects.stdin.flush()
            size = int(objects.stdout.readline().split()[2])
            tree.write(os.fsdecode(name), _Part(objects.stdout, size), executable=info.startswith(b"100755"))
            objects.stdout.read(1)


class _Part:
    """File-like view of the next ``size`` bytes of a stream."""

    def __init__(self, stream: _Readable, size: int) -> None:
        self._stream = stream
        self._left = size

    def read(self, count: int) -> bytes:
        """Read up to ``count`` bytes of the part."""
        data = self._stream.read(min(count, self._left))
        self._left -= len(data)
        return data


def _tarred(archive: Path) -> Iterator[tuple[str, _Readable, bool]]:
    with tarfile.open(archive, "r|*") as tar:
        for member in tar:
            if member.isreg():
                stream = tar.extractfile(member)
                assert stream is not None
                yield member.name, stream, bool(member.mode & 0o100)


def _zipped(archive: Path) -> Iterator[tuple[str, _Readable, bool]]:
    with zipfile.ZipFile(archive) as file:
        if len(file.infolist()) > MAX_FILES:
            sys.exit(f"more than {MAX_FILES} files")
        for member in file.infolist():
            mode = member.external_attr >> 16
            if not member.is_dir() and mode & 0o170000 in (0, 0o100000):
                with file.open(member) as stream:
                    yield member.filename, stream, bool(mode & 0o100)


def main(what: str, source: str, revision: str) -> None:
    """Unpack ``source`` into the current folder."""
    out = Path.cwd()
    if what == "wheels":
        unpack_wheels(Path(source), out / "tree")
    elif what == "sdist":
        unpack_sdist(Path(source), out / "tree")
    else:
        unpack_repository(Path(source), out / "tree", revision)


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2], sys.argv[3])
    except (
        OSError,
        ValueError,
        tarfile.TarError,
        zipfile.BadZipFile,
        subprocess.CalledProcessError,
    ) as error:
        sys.exit(f"it cannot be unpacked: {type(error).__name__}: {error}")
