"""Writing files and folders so that readers see the old content or the new, never a part."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


def atomic_write(path: Path, text: str, *, durable: bool = False) -> None:
    """Replace a file's content at once, by way of a temporary file in the same folder.

    Args:
        path: the file; its folder exists.
        text: the new content.
        durable: force it to the disk before the file is replaced.
    """
    with atomic_open(path, durable=durable) as file:
        file.write(text)


@contextmanager
def atomic_open(path: Path, *, durable: bool = False) -> Iterator[TextIO]:
    """Open a temporary file that replaces ``path`` when the block ends without an error.

    Args:
        path: the file; its folder exists.
        durable: force the new content to the disk before the file is replaced.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with temporary.open("w") as file:
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


def replace_folder(new: Path, target: Path) -> None:
    """Put a folder in the place of another one, or of none, and delete the other.

    Both change places in one step (``renameat2``), so that a kill at any moment leaves the old folder or the
    new one there; file systems that cannot do that (some network ones) have neither for a moment.

    Args:
        new: on the same file system as ``target``; gone afterwards.
        target: the place.
    """
    if not target.exists():
        new.rename(target)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(target), _RENAME_EXCHANGE) == 0:
        shutil.rmtree(new)
        return
    code = ctypes.get_errno()
    if code not in _UNSUPPORTED:
        raise OSError(code, os.strerror(code), str(new), None, str(target))
    retired = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=target.parent))
    target.rename(retired / "old")
    new.rename(target)
    shutil.rmtree(retired)
