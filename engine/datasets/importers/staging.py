"""Staging folder of a growing import: invisible until complete, resumable after a kill at any point.

``home/datasets/.import-<name>/`` contains the growing files and ``state.json`` with their valid lengths. The
state is written after the files it describes are on disk; data beyond it is truncated when an import resumes.
The finished folder replaces the dataset atomically.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from engine.datasets.store import answer_line, dataset_path, header_text, swap_in, task_line
from engine.errors import DatasetError
from engine.files import atomic_write
from engine.types import TaskRow

TASKS, ANSWERS, REJECTS, EXCLUDED = "tasks.jsonl", "answers.jsonl", "rejects.jsonl", "excluded.jsonl"
_FILES = (TASKS, ANSWERS, REJECTS, EXCLUDED)
_STATE = "state.json"


@dataclass(slots=True)
class ImportProgress:
    """Progress of an import."""

    fingerprint: str
    """Fingerprint of source and settings; only an identical import resumes here."""
    next_row: int = 0
    """Number of the first unprocessed row of the source."""
    sizes: dict[str, int] = field(default_factory=dict)
    """File → number of valid bytes."""
    counts: dict[str, int] = field(default_factory=dict)
    excluded_by: dict[str, int] = field(default_factory=dict)
    rejected_by: dict[str, int] = field(default_factory=dict)
    """Invalid field → number of rejected rows; the empty key counts rows that are invalid as a whole."""
    ungradable_by: dict[str, int] = field(default_factory=dict)
    first_rejects: list[dict[str, Any]] = field(default_factory=list)
    splits: dict[str, int] = field(default_factory=dict)

    def count(self, name: str, by: int = 1) -> None:
        """Increment a count."""
        self.counts[name] = self.counts.get(name, 0) + by


class Staging:
    """The growing folder of one import; use as a context manager, which locks it.

    Args:
        home: the data folder.
        name: the dataset.
        fingerprint: identifies source and settings.

    Raises:
        DatasetError: another process is importing the same dataset.
    """

    def __init__(self, home: Path, name: str, fingerprint: str) -> None:
        self._target = dataset_path(home, name)
        self._name = name
        self.folder = self._target.parent / f".import-{name}"
        self.progress = ImportProgress(fingerprint=fingerprint)
        self._streams: dict[str, IO[bytes]] = {}
        self._lock = FileLock(self.folder.parent / f".import-{name}.lock", thread_local=False)

    def __enter__(self) -> Staging:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            raise DatasetError(f"another process is importing '{self._name}'") from None
        self._open(self._stored())
        return self

    def __exit__(self, *failure: object) -> None:
        for stream in self._streams.values():
            stream.close()
        self._lock.release()

    def _stored(self) -> ImportProgress | None:
        """Return the progress of an interrupted import with the same fingerprint, if any."""
        try:
            stored = ImportProgress(**json.loads((self.folder / _STATE).read_text()))
        except (OSError, ValueError, TypeError):
            return None
        enough = all((self.folder / file).is_file() for file in _FILES) and all(
            (self.folder / file).stat().st_size >= size for file, size in stored.sizes.items()
        )
        return stored if enough and stored.fingerprint == self.progress.fingerprint else None

    def _open(self, stored: ImportProgress | None) -> None:
        if stored is not None:
            self.progress = stored
        for file in _FILES:
            path = self.folder / file
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600 if file == ANSWERS else 0o644)
            os.ftruncate(descriptor, self.progress.sizes.get(file, 0))
            os.lseek(descriptor, 0, os.SEEK_END)
            self._streams[file] = os.fdopen(descriptor, "wb")

    @property
    def resumed(self) -> bool:
        """Return whether an earlier process began this import, even if it processed no row."""
        return bool(self.progress.sizes)

    def tasks(self) -> Iterator[dict[str, Any]]:
        """Yield the visible halves written so far, as stored in the file."""
        with (self.folder / TASKS).open("rb") as file:
            for line in file:
                yield json.loads(line)

    def seed(self) -> None:
        """Start with the rows of the existing dataset."""
        for file in _FILES:
            if (self._target / file).is_file():
                with (self._target / file).open("rb") as stored:
                    shutil.copyfileobj(stored, self._streams[file])
                self._streams[file].flush()
        for task in self.tasks():
            self.progress.splits[task["split"]] = self.progress.splits.get(task["split"], 0) + 1

    def add(self, row: TaskRow) -> None:
        """Append a row."""
        self._streams[TASKS].write(task_line(row).encode())
        self._streams[ANSWERS].write(answer_line(row).encode())
        self.progress.splits[row.split] = self.progress.splits.get(row.split, 0) + 1

    def note(self, file: str, record: Mapping[str, Any]) -> None:
        """Append a record to the rejected or the excluded rows."""
        self._streams[file].write((json.dumps(dict(record)) + "\n").encode())

    def commit(self, next_row: int) -> None:
        """Commit everything up to ``next_row`` durably to disk."""
        for file, stream in self._streams.items():
            stream.flush()
            os.fsync(stream.fileno())
            self.progress.sizes[file] = stream.tell()
        self.progress.next_row = next_row
        atomic_write(self.folder / _STATE, json.dumps(asdict(self.progress)))

    def publish(self, provenance: Mapping[str, Any]) -> None:
        """Turn the folder into the dataset, atomically."""
        (self.folder / "dataset.json").write_text(header_text(self._name, self.progress.splits, provenance))
        (self.folder / _STATE).unlink(missing_ok=True)
        self.folder.chmod(0o755)
        swap_in(self.folder, self._target)

    def discard(self) -> None:
        """Delete the staged data."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.folder)
