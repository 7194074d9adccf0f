"""File operations inside the sandbox, with the permissions of the sandboxed user.

To add one: a function ``request dict -> reply dict`` that may raise OSError, registered in ``OPERATIONS``.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from .wire import MAX_FRAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MAX_ENTRIES = 10_000
_STAGED = ".trainyard-%d"


def _create(path: str, data: bytes, mode: int) -> None:
    """Write a new file; remove it on failure."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fchmod(fd, mode)
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(fd)


def _read_regular(path: str, limit: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file")
        data = bytearray()
        while len(data) <= limit:
            part = os.read(fd, min(1 << 20, limit + 1 - len(data)))
            if not part:
                return bytes(data)
            data += part
        raise OSError(errno.EFBIG, "larger than %d bytes" % limit)
    finally:
        os.close(fd)


def read(request: dict[str, Any]) -> dict[str, object]:
    """Return the content of the regular file ``path``, at most ``max_bytes`` (EFBIG above)."""
    return {"data": _read_regular(request["path"], request["max_bytes"])}


def write(request: dict[str, Any]) -> dict[str, object]:
    """Create ``path`` with ``mode``, or replace its content atomically, keeping its mode."""
    path = os.path.realpath(request["path"])
    mode = request["mode"]
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
    if os.path.lexists(path):
        current = os.lstat(path).st_mode
        if stat.S_ISDIR(current):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(current):
            raise OSError(errno.EINVAL, "not a regular file")
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        mode = stat.S_IMODE(current)
    temporary = os.path.join(os.path.dirname(path), _STAGED % time.monotonic_ns())
    _create(temporary, request["data"], mode)
    try:
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
    return {}


def list_dir(request: dict[str, Any]) -> dict[str, object]:
    """List names below ``path`` down to ``depth``: sorted, folders with a trailing slash, no dot-files."""
    paths: list[str] = []
    queue = [(request["path"], "", request["depth"])]
    while queue and len(paths) < _MAX_ENTRIES:
        folder, prefix, depth = queue.pop()
        try:
            entries = list(os.scandir(folder))
        except OSError:
            if not prefix:
                raise
            continue
        for entry in entries:
            if entry.name.startswith("."):
                continue
            is_folder = entry.is_dir(follow_symlinks=False)
            paths.append(prefix + entry.name + ("/" if is_folder else ""))
            if is_folder and depth > 1:
                queue.append((entry.path, prefix + entry.name + "/", depth - 1))
    return {"paths": sorted(paths)[:_MAX_ENTRIES]}


def tree(request: dict[str, Any]) -> dict[str, object]:
    """List every regular file and symlink below ``path``, NUL-joined: ``mode size ctime_ns``, name, …"""
    skip = {os.fsencode(name) for name in request["skip"]}
    rows: list[bytes] = []
    queue = [(os.fsencode(request["path"]), b"")]
    while queue:
        folder, prefix = queue.pop()
        for entry in os.scandir(folder):
            if entry.name in skip:
                continue
            if entry.is_dir(follow_symlinks=False):
                queue.append((entry.path, prefix + entry.name + b"/"))
                continue
            info = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode):
                rows.append(b"%o %d %d" % (info.st_mode, info.st_size, info.st_ctime_ns))
                rows.append(prefix + entry.name)
    return {"tree": b"\0".join(rows)}


def _inside(root: str, name: str, gone: tuple[str, ...] = ()) -> str:
    """Return the path of ``name`` below ``root``. ELOOP if a link (not in ``gone``) or ``..`` leads out."""
    parts = name.split("/")
    for number in range(1, len(parts)):
        folder = "/".join(parts[:number])
        if parts[number - 1] == ".." or (folder not in gone and os.path.islink(os.path.join(root, folder))):
            raise OSError(errno.ELOOP, "%s leads through a symlink" % name)
    return os.path.join(root, name)


def fetch(request: dict[str, Any]) -> dict[str, object]:
    """Return ``[mode, content or link target]`` of the files ``names`` below ``path``; None if absent."""
    files: list[list[object] | None] = []
    for name in request["names"]:
        try:
            path = _inside(request["path"], name)
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                files.append([mode, os.fsencode(os.readlink(path))])
            else:
                files.append([mode, _read_regular(path, MAX_FRAME)])
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP):
                raise
            files.append(None)
    return {"files": files}


def commit(request: dict[str, Any]) -> dict[str, object]:
    """Write ``files`` (name, mode, content or link target) below ``path``, remove ``deleted``; all or none.

    All new files are written before the first old one is moved, and old ones are kept until all are replaced.
    """
    root, deleted = request["path"], request["deleted"]
    names = [row[0] for row in request["files"]]
    for name in [*deleted, *names]:
        _inside(root, name, tuple(deleted))
    staging = os.path.join(root, _STAGED % time.monotonic_ns())
    os.mkdir(staging, 0o700)
    try:
        for number, (_, mode, data) in enumerate(request["files"]):
            temporary = os.path.join(staging, "new-%d" % number)
            if stat.S_ISLNK(mode):
                os.symlink(os.fsdecode(data), temporary)
            else:
                _create(temporary, data, stat.S_IMODE(mode))
        _exchange(root, staging, names, deleted)
    finally:
        for entry in os.listdir(staging):
            os.unlink(os.path.join(staging, entry))
        os.rmdir(staging)
    for name in deleted:
        _prune(root, os.path.dirname(name))
    return {}


def _exchange(root: str, staging: str, names: list[str], deleted: list[str]) -> None:
    """Move new files from ``staging`` to ``names``, replaced and ``deleted`` ones into it; or undo."""
    undo: list[tuple[Any, ...]] = []

    def move(source: str, target: str) -> None:
        os.rename(source, target)
        undo.append((os.rename, target, source))

    def make(folder: str) -> None:
        if not os.path.isdir(folder):
            make(os.path.dirname(folder))
            os.mkdir(folder)
            undo.append((os.rmdir, folder))

    def retire(path: str) -> None:
        move(path, os.path.join(staging, "old-%d" % len(undo)))

    def dismantle(path: str) -> None:
        # Folder by folder: overlay file systems cannot rename a folder of a lower layer.
        for folder, _, files in os.walk(path, topdown=False):
            if os.path.basename(folder) == "__pycache__":
                for name in files:
                    retire(os.path.join(folder, name))
            mode = stat.S_IMODE(os.lstat(folder).st_mode)
            os.rmdir(folder)  # fails where it holds more than bytecode caches
            undo.extend([(os.chmod, folder, mode), (os.mkdir, folder)])

    try:
        for name in deleted:
            path = os.path.join(root, name)
            if stat.S_ISDIR(os.lstat(path).st_mode):
                raise IsADirectoryError(errno.EISDIR, "%s is a folder" % name)
            retire(path)
        for number, name in enumerate(names):
            path = os.path.join(root, name)
            if os.path.isdir(path) and not os.path.islink(path):
                dismantle(path)
            elif os.path.lexists(path):
                retire(path)
            make(os.path.dirname(path))
            move(os.path.join(staging, "new-%d" % number), path)
    except BaseException:
        for function, *arguments in reversed(undo):
            function(*arguments)
        raise


def _prune(root: str, folder: str) -> None:
    while folder:
        try:
            os.rmdir(os.path.join(root, folder))
        except OSError:
            return
        folder = os.path.dirname(folder)


OPERATIONS = {"read": read, "write": write, "list": list_dir, "tree": tree, "fetch": fetch, "commit": commit}
