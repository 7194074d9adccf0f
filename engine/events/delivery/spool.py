"""The durable spool: one JSON line per event, appended to ``events.jsonl`` in the run folder.

Every event is written to disk before anything else reads it, so nothing is lost while the web
application is down. Three guarantees make it safe to ship, to resume and to replay:

* an event is in the file completely or not at all: a partial write is cut off at once,
  the incomplete last line of a killed process when the spool is next opened;
* ``seq`` continues over attempts, and one process at a time holds the folder (a lock);
* only bytes that were fsynced are shipped (``wait_durable``), so that a machine crash cannot
  leave the server with events missing from the spool.

To sync another event type before ``emit`` returns: add it to ``SYNCED``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

from engine.errors import FencedError, PreflightError, TrainyardError
from engine.events.redaction import redact_line
from engine.events.types import (
    CheckpointSaved,
    EvaluationFinished,
    IterationFinished,
    RunFinished,
    RunPaused,
)
from engine.redaction import redactor

SPOOL_NAME = "events.jsonl"
LOCK_NAME = "engine.lock"
SYNCED: tuple[type[Any], ...] = (
    IterationFinished,
    EvaluationFinished,
    CheckpointSaved,
    RunPaused,
    RunFinished,
)
"""Event types synced to disk before ``emit`` returns; all others follow within ``SYNC_INTERVAL_S``."""
SYNC_INTERVAL_S = 0.1
"""Interval over which events share one fsync, seconds."""
_TAIL_BLOCK = 65_536
_POSITION = re.compile(rb'\{"seq":(\d+),"epoch":(\d+),')


class SpoolLine(NamedTuple):
    """One complete line: ``data`` without its newline, ``end`` the offset behind the newline."""

    data: bytes
    end: int


class SpoolSink:
    """An ``EventSink`` on a file; safe to use from several threads.

    Args:
        run_dir: the run folder, which exists.
        epoch: this attempt's number.
        after_seq: last ``seq`` on the server; events continue after it, even if some are missing here.
        lock_timeout_s: maximum time for an earlier attempt's process to end, seconds.

    Raises:
        PreflightError: another process holds the run folder.
        FencedError: the spool already has events of a newer attempt.
        TrainyardError: the spool's last complete line is not an event.
    """

    def __init__(
        self, run_dir: Path, *, epoch: int, after_seq: int = 0, lock_timeout_s: float = 10.0
    ) -> None:
        self.path = run_dir / SPOOL_NAME
        self.epoch = epoch
        self._mutex = threading.Lock()
        self._durable_changed = threading.Condition()
        self._fenced = ""
        self._failure: OSError | None = None
        self._closed = False
        self._dirty = threading.Event()
        self._lock = lock_folder(run_dir, lock_timeout_s)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(self._lock.release)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            on_failure.callback(os.close, self._fd)
            self._size, last_seq = self._recover()
            self.last_seq = max(last_seq, after_seq)
            on_failure.pop_all()
        self._durable = self._size
        self._syncer = threading.Thread(target=self._sync_loop, name="spool-sync", daemon=True)
        self._syncer.start()

    def emit(self, event_type: type[Any], /, **fields: Any) -> int:
        """Validate and append one event; return its ``seq``.

        Raises:
            FencedError: a newer attempt exists.
            OSError: the disk is full or failing; nothing of the event is in the file.
            pydantic.ValidationError: the fields do not fit the event type.
        """
        # Encoded before the lock is taken: an event of megabytes must not block other threads.
        event = event_type(seq=1, epoch=self.epoch, time=0.0, **fields)
        rest = redact_line(event.model_dump_json(exclude={"seq", "epoch", "time"}).encode(), redactor())
        with self._mutex:
            if self._fenced:
                raise FencedError(self._fenced)
            if self._failure is not None:
                raise self._failure
            if self._closed:
                raise TrainyardError("the spool is closed")
            seq = self.last_seq + 1
            start = f'{{"seq":{seq},"epoch":{self.epoch},"time":{time.time()},'
            self._append(start.encode() + rest.removeprefix(b"{") + b"\n")
            self.last_seq = seq
        if issubclass(event_type, SYNCED):
            self.sync()
        else:
            self._dirty.set()
        return seq

    def fence(self, reason: str) -> None:
        """Reject every further event, because a newer attempt owns the run."""
        with self._mutex:
            self._fenced = self._fenced or reason

    def sync(self) -> None:
        """Sync all appended events to disk. Raises OSError, then and on every later call."""
        with self._mutex:
            size = self._size
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            self._failure = error
            raise
        with self._durable_changed:
            self._durable = max(self._durable, size)
            self._durable_changed.notify_all()

    def wait_durable(self, offset: int, timeout_s: float) -> int:
        """Return the offset up to which lines are safe to ship; waits until it passes ``offset``."""
        with self._durable_changed:
            self._durable_changed.wait_for(lambda: self._durable > offset, timeout_s)
            return self._durable

    def close(self) -> None:
        """Sync, close the file and release the run folder; safe to call twice."""
        with self._mutex:
            if self._closed:
                return
            self._closed = True
        self._dirty.set()
        self._syncer.join()
        os.fdatasync(self._fd)
        os.close(self._fd)
        self._lock.release()

    def _append(self, line: bytes) -> None:
        written = 0
        try:
            while written < len(line):
                written += os.write(self._fd, line[written:])
        except OSError as error:
            os.ftruncate(self._fd, self._size)
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise OSError(
                    error.errno,
                    f"no space left to record events in {self.path}: free some disk space and resume the run",
                ) from error
            raise
        self._size += len(line)

    def _recover(self) -> tuple[int, int]:
        size = os.fstat(self._fd).st_size
        last, end = _last_line(self._fd, size)
        if end < size:
            os.ftruncate(self._fd, end)
        if end == 0:
            return 0, 0
        try:
            record = json.loads(last)
            seq, epoch = int(record["seq"]), int(record["epoch"])
        except (ValueError, KeyError, TypeError) as error:
            raise TrainyardError(f"the last line of {self.path} is not an event: {error}") from error
        if epoch > self.epoch:
            raise FencedError(
                f"attempt {epoch} of this run already wrote events; this is attempt {self.epoch}"
            )
        return end, seq

    def _sync_loop(self) -> None:
        while not self._closed:
            self._dirty.wait()
            time.sleep(SYNC_INTERVAL_S)
            self._dirty.clear()
            with contextlib.suppress(OSError):  # the next emit raises it
                self.sync()


def read_lines(path: Path, offset: int = 0, end: int | None = None) -> Iterator[SpoolLine]:
    """Yield the complete lines from byte ``offset`` (a line's start) to ``end``; skip an incomplete one."""
    try:
        stream = path.open("rb")
    except FileNotFoundError:
        return
    with stream:
        stream.seek(offset)
        for line in stream:
            offset += len(line)
            if not line.endswith(b"\n") or (end is not None and offset > end):
                return
            yield SpoolLine(line[:-1], offset)


def _last_line(fd: int, size: int) -> tuple[bytes, int]:
    """Return the last complete line (empty when there is none) and the offset behind it."""
    tail, start = b"", size
    while start > 0 and tail.count(b"\n") < 2:
        step = min(_TAIL_BLOCK, start)
        start -= step
        tail = os.pread(fd, step, start) + tail
    complete, newline, torn = tail.rpartition(b"\n")
    if not newline:
        return b"", 0
    return complete.rpartition(b"\n")[2], size - len(torn)


def spool_position(path: Path, end: int | None = None) -> tuple[int, int]:
    """Return attempt and ``seq`` of the last complete line before byte ``end``; (0, 0) without one."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0, 0
    try:
        last, _ = _last_line(fd, os.fstat(fd).st_size if end is None else end)
    finally:
        os.close(fd)
    match = _POSITION.match(last)
    return (int(match[2]), int(match[1])) if match else (0, 0)


def is_held(run_dir: Path) -> bool:
    """Return whether a process is performing the run of a folder, on any machine that shares its locks."""
    try:
        with (run_dir / LOCK_NAME).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        return True
    return False


def lock_folder(run_dir: Path, timeout_s: float = 10.0) -> FileLock:
    """Take the exclusive lock for writing a run folder. Raises PreflightError."""
    path = run_dir / LOCK_NAME
    lock = FileLock(path, timeout=timeout_s, mode=0o600, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        holder = path.read_text().strip() or "unknown"
        raise PreflightError(
            f"another process (pid {holder}) is running {path.parent}: stop it first"
        ) from None
    path.write_text(str(os.getpid()))
    return lock
