"""Rows and downloads in parts, so that no process loads them completely."""

from __future__ import annotations

import os
import zipfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from asgiref.sync import sync_to_async

Part = TypeVar("Part")
_PART_BYTES = 1 << 20


def in_threads(parts: Iterable[Part]) -> AsyncIterator[Part]:
    """Return an asynchronous iterator over parts produced in threads; no part may be None.

    The server consumes an ordinary iterator completely before it sends anything.
    """
    pending = iter(parts)

    async def items() -> AsyncIterator[Part]:
        while (part := await sync_to_async(lambda: next(pending, None))()) is not None:
            yield part

    return items()


def batched(
    items: Iterable[Part], *, count: int, size: int, size_of: Callable[[Part], int]
) -> Iterator[list[Part]]:
    """Yield items in lists of ``count``; a list ends earlier when its total size reaches ``size``."""
    batch: list[Part] = []
    total = 0
    for item in items:
        batch.append(item)
        total += size_of(item)
        if len(batch) >= count or total >= size:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


def zipped(folder: str, files: Iterable[tuple[str, bytes]]) -> Iterator[bytes]:
    """Yield a ZIP archive, one file at a time.

    Args:
        folder: top folder of the archive.
        files: path within the folder and content of each file.
    """
    written = _Written()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files:
            archive.writestr(f"{folder}/{path}", content)
            yield written.take()
    yield written.take()


def zipped_files(folder: str, files: Iterable[tuple[str, Path]]) -> Iterator[bytes]:
    """Yield a ZIP archive of files on disk, uncompressed, in parts of at most about a mebibyte.

    Args:
        folder: top folder of the archive.
        files: path within the folder and path on disk of each file; links are refused with an OSError.
    """
    written = _Written()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_STORED) as archive:
        for name, path in files:
            source = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb")
            entry = zipfile.ZipInfo(f"{folder}/{name}")
            with source, archive.open(entry, "w", force_zip64=True) as target:
                while part := source.read(_PART_BYTES):
                    target.write(part)
                    yield written.take()
    yield written.take()


class _Written:
    """Write-only file; ``take`` returns and removes the bytes written so far."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes, /) -> int:
        self._parts.append(data)
        return len(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def take(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)
