"""Watch of a run's disk: the size of its folder, and the free space that the services of the machine need."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

import structlog

_log = structlog.get_logger(__name__)
EVERY_S = 15.0
RESERVE_BYTES = 500_000_000
"""Free space left to the services of the machine, which stop without any."""


class DiskWatch:
    """Thread that calls a function, once, when a folder has grown too large or its disk is nearly full.

    Args:
        folder: the run's folder.
        limit_bytes: its maximum size.
        stop: called with the reason; from the thread.
    """

    def __init__(self, folder: Path, limit_bytes: float, stop: Callable[[str], None]) -> None:
        self._folder, self._limit, self._stop = folder, limit_bytes, stop
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="disk-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()

    def _loop(self) -> None:
        while True:
            try:
                problem = self._problem()
            except OSError as error:
                problem = ""
                _log.warning("disk not measured", folder=str(self._folder), reason=str(error))
            if problem:
                self._stop(problem)
                return
            if self._closed.wait(EVERY_S):
                return

    def _problem(self) -> str:
        size = folder_bytes(self._folder)
        if size > self._limit:
            return (
                f"its folder has {size / 1e9:,.3g} GB, more than disk_gb allows ({self._limit / 1e9:,.3g}): "
                "delete old checkpoints there and resume, or start a new run from one of them"
            )
        free = shutil.disk_usage(self._folder).free
        if free < RESERVE_BYTES:
            return (
                f"the disk of {self._folder} has {free / 1e6:,.0f} MB left, less than the "
                f"{RESERVE_BYTES / 1e6:,.0f} MB that the services need: free some and resume"
            )
        return ""


def folder_bytes(folder: Path) -> int:
    """Return the disk space of the files below a folder, bytes; a file of n hard links counts as 1/n of it.

    Files that vanish meanwhile are left out.
    """
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                status = Path(root, name).lstat()
                total += status.st_blocks * 512 // max(status.st_nlink, 1)
    return total
