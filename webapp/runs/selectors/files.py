"""Reads of the files in run folders: regular files only, without links and secrets."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from engine.redaction import redact
from webapp.runs.selectors.folders import run_folder

MOST_ENTRIES = 20_000
"""Largest number of entries of a folder that are read."""
MOST_SHOWN = 1_000
_MOST_PARTS = 12
_PART_BYTES = 1 << 20
_SECRET_NAMES = ("launch.json",)
"""Parts of names of files with a token: ``launch.json``, and what a killed writer left of it."""
_SECRET_SUFFIXES = (".key", ".pem", ".env", ".netrc")
_LOG = ".log"


@dataclass(frozen=True, slots=True)
class RunFile:
    """A regular file in a run folder."""

    name: str
    """Path below the folder."""
    kind: str
    """``log``, ``configuration``, ``events``, ``result``, ``checkpoint`` or ``other``."""
    size: int
    """Bytes."""
    changed_at: datetime


@dataclass(frozen=True, slots=True)
class RunFiles:
    """Files of a run folder."""

    files: tuple[RunFile, ...]
    """The first ``MOST_SHOWN`` files, checkpoints last."""
    total: int
    total_size: int
    """Bytes of all of them."""
    complete: bool
    """False if the folder has more than ``MOST_ENTRIES`` entries; the others are not counted."""


def list_files(run_id: int) -> RunFiles:
    """Return the files of a run; none if its folder is not on this machine."""
    folder = run_folder(run_id)
    files: list[RunFile] = []
    entries, pending = 0, [(folder, 0)]
    while pending and entries < MOST_ENTRIES:
        directory, depth = pending.pop()
        try:
            with os.scandir(directory) as found:
                for entry in found:
                    entries += 1
                    if entries > MOST_ENTRIES:
                        break
                    if entry.is_dir(follow_symlinks=False) and depth + 1 < _MOST_PARTS:
                        pending.append((Path(entry.path), depth + 1))
                    elif entry.is_file(follow_symlinks=False) and not _is_secret(entry.name):
                        name = Path(entry.path).relative_to(folder).as_posix()
                        # Control characters and bytes that are not UTF-8 do not fit into an address.
                        if name.isprintable():
                            files.append(_file(name, entry.stat(follow_symlinks=False)))
        except OSError:  # removed meanwhile, or never there
            continue
    files.sort(key=lambda file: (_ORDER.index(file.kind), file.name))
    total = sum(file.size for file in files)
    return RunFiles(tuple(files[:MOST_SHOWN]), len(files), total, entries <= MOST_ENTRIES and not pending)


def open_file(run_id: int, name: str) -> tuple[RunFile, BinaryIO] | None:
    """Open a file of a run; None unless it is a regular file that ``list_files`` may list.

    Each folder of the path is opened without following links, so that a link that replaces one is refused.
    """
    parts = name.split("/")
    if len(parts) > _MOST_PARTS or any(part in ("", ".", "..") for part in parts) or _is_secret(parts[-1]):
        return None
    with ExitStack() as stack:
        try:
            parent = os.open(run_folder(run_id), os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, parent)
            for part in parts[:-1]:
                parent = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
                stack.callback(os.close, parent)
            # Without O_NONBLOCK, opening a named pipe would wait for a writer.
            number = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent)
        except (OSError, ValueError):  # ValueError: a NUL character
            return None
        status = os.fstat(number)
        if not stat.S_ISREG(status.st_mode):
            os.close(number)
            return None
        return _file(name, status), os.fdopen(number, "rb")


def read_parts(file: RunFile, content: BinaryIO) -> Iterator[bytes]:
    """Yield the content of an opened file in parts, up to the size at its opening; close it at the end.

    Logs contain what libraries and child processes printed: secrets are removed from them.
    """
    left = file.size
    rest = b""
    with content:
        while left > 0 and (part := content.read(min(_PART_BYTES, left))):
            left -= len(part)
            if file.kind != "log":
                yield part
                continue
            lines, newline, tail = (rest + part).rpartition(b"\n")
            # A line longer than a part is not collected.
            whole, rest = (lines + newline, tail) if newline else (rest + part, b"")
            yield _redacted(whole)
        if rest:
            yield _redacted(rest)


_ORDER = ("log", "configuration", "events", "result", "other", "checkpoint")


def _file(name: str, status: os.stat_result) -> RunFile:
    changed_at = datetime.fromtimestamp(min(max(status.st_mtime, 0), 253_000_000_000), UTC)
    return RunFile(name, _kind(name), status.st_size, changed_at)


def _kind(name: str) -> str:
    if name.endswith(_LOG):
        return "log"
    if name == "config.json":
        return "configuration"
    if name.startswith("checkpoints/"):
        return "checkpoint"
    if name.startswith("events."):
        return "events"
    return "result" if "/" not in name and name.endswith((".json", ".jsonl")) else "other"


def _is_secret(name: str) -> bool:
    lower = name.lower()
    return any(secret in lower for secret in _SECRET_NAMES) or lower.endswith(_SECRET_SUFFIXES)


def _redacted(part: bytes) -> bytes:
    return redact(part.decode(errors="replace")).encode()
