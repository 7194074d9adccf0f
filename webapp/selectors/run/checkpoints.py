"""Reads of checkpoints: those that an engine reported, and those that are in the run folder still."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from webapp.models import Checkpoint, Run
from webapp.selectors.run.folders import run_folder

MANIFEST = "manifest.json"
"""Written last by the trainer: a folder without it is not complete."""
MOST_SHOWN = 200


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A checkpoint in the run folder."""

    checkpoint: Checkpoint
    folder: Path
    size: int
    """Bytes of all its files."""

    @property
    def iteration(self) -> int:
        """Return the iterations completed before it."""
        return self.checkpoint.iteration

    def files(self) -> Iterator[tuple[str, Path]]:
        """Yield the name and path of every file; links are left out, since they may lead anywhere."""
        return _files(self.folder)


def stored_checkpoints(run: Run) -> tuple[list[StoredCheckpoint], int]:
    """Return the newest checkpoints that exist, and how many were ever saved."""
    rows = Checkpoint.objects.filter(run=run).order_by("-iteration")
    present = _present(run)
    shown = [row for row in rows if row.iteration in present][:MOST_SHOWN]
    return [_stored(row, present[row.iteration]) for row in shown], len(rows)


def find_checkpoint(run: Run, iteration: int) -> StoredCheckpoint | None:
    """Return one checkpoint; None if it was never saved or does not exist any more."""
    row = Checkpoint.objects.filter(run=run, iteration=iteration).first()
    folder = _present(run).get(iteration)
    return _stored(row, folder) if row is not None and folder is not None else None


def _stored(row: Checkpoint, folder: Path) -> StoredCheckpoint:
    return StoredCheckpoint(row, folder, sum(path.stat().st_size for _, path in _files(folder)))


def _present(run: Run) -> dict[int, Path]:
    """Return the complete folders by number; their names are looked up, never taken from events."""
    root = run_folder(run.pk) / "checkpoints"
    try:
        entries = list(os.scandir(root))
    except OSError:
        return {}
    return {
        int(entry.name): Path(entry.path)
        for entry in entries
        if entry.name.isascii()
        and entry.name.isdecimal()
        and entry.is_dir(follow_symlinks=False)
        and (Path(entry.path) / MANIFEST).is_file()
    }


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(place) / name
            if path.is_file() and not path.is_symlink():
                yield path.relative_to(folder).as_posix(), path
