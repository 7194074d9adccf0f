"""Writing files so that readers see the old content or the new, never a part."""

from __future__ import annotations

import os
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
