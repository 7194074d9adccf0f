"""Mirror of a run folder: threads that copy changes to a store, in an order that keeps it restorable.

* The spool is copied at intervals, together with the small files of the run folder; a second thread copies
  complete folders (checkpoints, frozen policies).
* The manifest is written last, and lists a checkpoint only together with all earlier events.
* ``wait_durable`` releases an event to the shipper once the store has it, so that the server never has an
  event that the next attempt lacks. While the store fails for longer than ``PATIENCE_S``, events are shipped
  without it, and an alert is emitted.

A failing store never ends a run: every copy is retried.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import structlog

from engine.errors import TrainyardError
from engine.events.delivery.spool import SpoolSink, spool_position
from engine.events.types import Alert
from engine.storage.folder import entries
from engine.storage.manifest import Manifest, Segment, StoredFile, newest_claim
from engine.storage.store import Store, StoreError

PATIENCE_S = 30.0
"""Time for which events wait for a failing store, seconds."""
CLOSE_S = 30.0
"""Time for which the end of a run waits for its last copy, seconds."""
SEGMENT_BYTES = 16 * 1024 * 1024
"""Length at which a segment of the spool is no longer joined with the next one."""
_RETRY_S = 1.0

log = structlog.get_logger("storage")


class Mirror:
    """Continuous copy of a run folder to a store, until it is closed.

    Args:
        store: the run's folder in the store.
        sink: the spool that this process writes.
        base: the manifest that the local run folder continues; None for a run that is not in the store.
        interval_s: time between two copies of the spool, seconds.
        on_fenced: called once a newer attempt has claimed the run.
    """

    def __init__(
        self,
        store: Store,
        sink: SpoolSink,
        base: Manifest | None,
        *,
        interval_s: float,
        on_fenced: Callable[[str], None],
    ) -> None:
        self._store, self._sink, self._interval_s = store, sink, interval_s
        self._run_dir = sink.path.parent
        self._on_fenced = on_fenced
        self._published = base or Manifest(epoch=sink.epoch)
        self._segments = _continued(self._published, sink.path)
        self._folders = {name: file for name, file in self._published.files.items() if "/" in name}
        self._unlisted: set[str] = set()
        """Stored objects that are removed with the next manifest that does not name them."""
        self._mirrored = 0
        self._numbers = count()
        self._attempt = f"{sink.epoch:05d}-{time.time_ns():x}"
        self._publishing = threading.RLock()
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._is_closed = False
        self._current_at = time.monotonic()
        """Time at which the store last had every event, or the run began."""
        self._alerted = False
        self._threads = [
            threading.Thread(target=loop, name=f"mirror-{name}", daemon=True)
            for name, loop in (("spool", self._spool_loop), ("folders", self._folder_loop))
        ]
        for thread in self._threads:
            thread.start()

    def wait_durable(self, offset: int, timeout_s: float) -> int:
        """Wait until lines beyond ``offset`` are safe to ship; return the offset up to which they are."""
        durable = self._sink.wait_durable(offset, timeout_s)
        if durable <= offset:
            return durable
        with self._changed:
            self._changed.wait_for(lambda: self._mirrored > offset or self._is_open, timeout_s)
        return durable if self._is_open else self._mirrored

    def close(self) -> None:
        """Copy remaining changes, for at most ``CLOSE_S``; safe to call twice."""
        if self._is_closed:
            return
        self._stopped.set()
        deadline = time.monotonic() + CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        last = threading.Thread(target=self._copy_last, args=(deadline,), name="mirror-last", daemon=True)
        last.start()
        last.join(max(0.0, deadline - time.monotonic()))
        self._is_closed = True
        with self._changed:
            self._changed.notify_all()

    @property
    def _is_open(self) -> bool:
        """Return whether events are shipped without the store."""
        return self._is_closed or time.monotonic() - self._current_at > PATIENCE_S

    def _spool_loop(self) -> None:
        while not self._stopped.is_set():
            durable = self._sink.wait_durable(self._mirrored, 0.2)
            if durable <= self._mirrored:
                self._current_at = time.monotonic()
            else:
                self._attempted(self._publish)
                self._stopped.wait(self._interval_s)

    def _folder_loop(self) -> None:
        while not self._stopped.is_set():
            self._attempted(self._copy_folders)
            self._stopped.wait(self._interval_s)

    def _copy_last(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            if self._attempted(self._copy_all):
                return
            time.sleep(_RETRY_S)

    def _attempted(self, work: Callable[[], None]) -> bool:
        """Run a copy step and return whether it succeeded; report a failure, which is retried later."""
        try:
            work()
        except (StoreError, OSError) as error:
            log.warning("store_failed", why=str(error))
            if not self._alerted and time.monotonic() - self._current_at > PATIENCE_S:
                self._alerted = True
                self._alert(
                    "warning",
                    f"{error}. The run continues and the copy is retried; until it succeeds, data that is "
                    "not in the store is lost with the node",
                )
            self._stopped.wait(_RETRY_S)
            return False
        return True

    def _alert(self, severity: str, message: str) -> None:
        with suppress(TrainyardError, OSError):  # a spool that cannot be written ends the run elsewhere
            self._sink.emit(Alert, severity=severity, code="store", message=message[:2000])

    def _publish(self) -> None:
        """Copy the spool and the small files, then write the manifest."""
        with self._publishing:
            durable = self._sink.wait_durable(self._mirrored, 0.0)
            files = dict(self._folders)
            files |= self._copied(path for path in entries(self._run_dir) if path.is_file())
            self._segments = self._with_tail(durable)
            epoch, seq = spool_position(self._sink.path, durable)
            manifest = Manifest(
                epoch=self._sink.epoch,
                last_epoch=epoch,
                last_seq=seq,
                spool=tuple(self._segments),
                files=files,
            )
            self._unlisted |= manifest.objects | self._published.objects
            if manifest != self._published:
                manifest.write(self._store)
                self._published = manifest
                self._remove(self._unlisted - manifest.objects)
                self._unlisted.clear()
            with self._changed:
                self._mirrored = durable
                self._current_at = time.monotonic()
                self._changed.notify_all()
        if self._alerted:
            self._alerted = False
            self._alert("info", f"The store {self._store.url} works again and is up to date")

    def _copy_folders(self) -> None:
        """Copy the folders that are complete, then publish them with every event before them."""
        paths = [path for entry in entries(self._run_dir) if entry.is_dir() for path in _files(entry)]
        copied = self._copied(paths)
        if copied == self._folders:
            return
        self._sink.sync()
        with self._publishing:
            self._folders = copied
            self._publish()

    def _copy_all(self) -> None:
        self._sink.sync()
        self._copy_folders()
        self._publish()

    def _copied(self, paths: Iterable[Path]) -> dict[str, StoredFile]:
        """Upload changed files; return all files. Raises OSError if one changes meanwhile."""
        files: dict[str, StoredFile] = {}
        try:
            self._upload_changed(paths, files)
        except (StoreError, OSError):
            with self._publishing:
                self._unlisted |= {file.object for file in files.values()}
            raise
        return files

    def _upload_changed(self, paths: Iterable[Path], files: dict[str, StoredFile]) -> None:
        """Upload changed files and add all to ``files``. Raises OSError if one changes meanwhile."""
        for path in paths:
            name, status = path.relative_to(self._run_dir).as_posix(), path.stat()
            known = self._published.files.get(name) or self._folders.get(name)
            if known and (known.size, known.mtime_ns) == (status.st_size, status.st_mtime_ns):
                files[name] = known
                continue
            stored = f"files/{self._attempt}/{next(self._numbers):06d}/{name}"
            files[name] = StoredFile(object=stored, size=status.st_size, mtime_ns=status.st_mtime_ns)
            self._store.upload(path, stored)
        for name, file in files.items():
            status = (self._run_dir / name).stat()
            if (file.size, file.mtime_ns) != (status.st_size, status.st_mtime_ns):
                raise OSError(f"{name} changed while it was copied")

    def _with_tail(self, durable: int) -> list[Segment]:
        """Upload the new end of the spool, joined with preceding segments of about its length."""
        segments = list(self._segments)
        start = segments[-1].end if segments else 0
        if durable <= start:
            return segments
        while segments and segments[-1].end - segments[-1].start <= 2 * (durable - start):
            if durable - segments[-1].start > SEGMENT_BYTES:
                break
            start = segments.pop().start
        content = _bytes(self._sink.path, start, durable)
        stored = f"spool/{self._attempt}-{start:015d}-{durable:015d}"
        self._store.write(stored, content)
        digest = hashlib.sha256(content).hexdigest()
        return [*segments, Segment(start=start, end=durable, object=stored, sha256=digest)]

    def _remove(self, objects: set[str]) -> None:
        """Delete objects that no manifest names, unless a newer attempt may rely on them."""
        if not objects:
            return
        if (newest := newest_claim(self._store)) > self._sink.epoch:
            self._on_fenced(f"attempt {newest} of this run exists in the store {self._store.url}")
            return
        self._store.remove(sorted(objects))


def _continued(base: Manifest, spool: Path) -> list[Segment]:
    """Return the segments that the local spool continues: all, or none for another spool."""
    if base.spool:
        last = base.spool[-1]
        if hashlib.sha256(_bytes(spool, last.start, last.end)).hexdigest() == last.sha256:
            return list(base.spool)
    return []


def _bytes(path: Path, start: int, end: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(end - start)


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and its subfolders, hidden ones too."""
    return (path for path in sorted(folder.rglob("*")) if path.is_file())
