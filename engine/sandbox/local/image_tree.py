"""The original files of an image's workdir, read from the image itself."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from engine.patches.trees import IGNORED, FileState
from engine.sandbox.local.images import Image
from engine.sandbox.responses import Stamp


class ImageTree:
    """The untouched workdir of an image, listed once and shared by its sandboxes."""

    def __init__(self, image: Image, workdir: str) -> None:
        self._root = os.path.join(image.rootfs, workdir.lstrip("/"))
        self._stamps: dict[str, Stamp] | None = None

    def stamps(self) -> Mapping[str, Stamp]:
        """See ``BaseTree.stamps``."""
        if self._stamps is None:
            self._stamps = dict(self._walk())
        return self._stamps

    def _walk(self) -> list[tuple[str, Stamp]]:
        files: list[tuple[str, Stamp]] = []
        queue = [(self._root, "")]
        while queue:
            folder, prefix = queue.pop()
            for entry in os.scandir(folder):
                if entry.name in IGNORED:
                    continue
                info = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(info.st_mode):
                    queue.append((entry.path, f"{prefix}{entry.name}/"))
                else:
                    files.append((prefix + entry.name, (info.st_mode, info.st_size, info.st_ctime_ns)))
        return files

    def states(self, names: Sequence[str]) -> dict[str, FileState]:
        """See ``BaseTree.states``."""
        return {name: state for name in names if (state := self._state(name)) is not None}

    def _state(self, name: str) -> FileState | None:
        path = os.path.join(self._root, name)
        try:
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                return FileState(mode, os.fsencode(os.readlink(path)))
            return FileState(mode, Path(path).read_bytes()) if stat.S_ISREG(mode) else None
        except (FileNotFoundError, NotADirectoryError):
            return None
