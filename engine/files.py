"""Files and numbered folders.

Writes are atomic: readers see the old content or the new, never a part.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


def atomic_write(path: Path, text: str, *, durable: bool = False, mode: int = 0o666) -> None:
    """Replace a file's content atomically, through a temporary file in the same folder.

    Args:
        path: the file; its folder exists.
        text: the new content.
        durable: force it to the disk before the file is replaced.
        mode: permissions of the file, less those that the process's umask forbids.
    """
    with atomic_open(path, durable=durable, mode=mode) as file:
        file.write(text)


@contextmanager
def atomic_open(path: Path, *, durable: bool = False, mode: int = 0o666) -> Iterator[TextIO]:
    """Open a temporary file that replaces ``path`` when the block ends without an error.

    Args:
        path: the file; its folder exists.
        durable: force the new content to the disk before the file is replaced.
        mode: permissions of the file, less those that the process's umask forbids.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        temporary.unlink(missing_ok=True)  # left by a killed process with the same id
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def create_folder_once(target: Path, make: Callable[[Path], Path]) -> Path:
    """Return a folder; a missing one is created atomically, safely against other processes.

    Args:
        target: the folder.
        make: fills the given empty folder beside the target, and returns the part of it that becomes the
            target.

    Raises:
        OSError: the folder cannot be written.
    """
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        make(draft).rename(target)
    except OSError:
        if not target.exists():
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def replace_folder(new: Path, target: Path) -> None:
    """Move a folder to ``target`` and delete the previous one, if any, as far as possible.

    Both are exchanged in one step (``renameat2``), so that a kill at any moment leaves the old folder or the
    new one; on file systems without that call (some network ones) both are missing for a moment.

    Args:
        new: folder on the same file system as ``target``; it no longer exists afterwards.
        target: destination; a symlink is replaced, and its own target kept.
    """
    if not os.path.lexists(target):
        new.rename(target)
        return
    if _exchange(new, target):
        if new.is_symlink():
            new.unlink()
        else:
            shutil.rmtree(new, ignore_errors=True)
        return
    retired = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=target.parent))
    target.rename(retired / "old")
    new.rename(target)
    shutil.rmtree(retired, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders; return False if the C library or the file system lacks the call."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)  # musl has none before 1.2.6
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code not in _UNSUPPORTED:
        raise OSError(code, os.strerror(code), str(one), None, str(other))
    return False


def numbered_folders(parent: Path) -> list[Path]:
    """Return the folders in ``parent`` that are named by a number, in numeric order."""
    folders = [path for path in parent.glob("[0-9]*") if path.name.isdecimal() and path.is_dir()]
    return sorted(folders, key=lambda path: int(path.name))
