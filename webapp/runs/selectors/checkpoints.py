"""Reads of checkpoints: reported by an engine, and still present in the run folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import or_
from pathlib import Path

from django.db.models import Exists, OuterRef, Q, Subquery

from webapp.runs.models.iterations import Checkpoint, Evaluation
from webapp.runs.models.runs import Run
from webapp.runs.selectors.folders import run_folder

MANIFEST = "manifest.json"
"""Written last by the trainer: a folder of shards without it is incomplete."""
WARM_START = "model.safetensors"
"""Weights of a warm start's folder, which has no manifest and is reported when it is complete."""
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
    """Return the newest checkpoints that exist, and the number ever saved."""
    rows = Checkpoint.objects.filter(run=run).order_by("-iteration")
    present = _present(run.pk)
    shown = [row for row in rows if row.iteration in present][:MOST_SHOWN]
    return [_stored(row, present[row.iteration]) for row in shown], len(rows)


@dataclass(frozen=True, slots=True)
class KnownCheckpoint:
    """A checkpoint that a new run can start from."""

    run_id: int
    run_name: str
    iteration: int
    """Iterations completed before it."""
    saved_at: datetime
    reference: str
    """Its folder below the runs' folder, as ``policy.checkpoint`` names it."""
    solve_rate: float | None
    """Held-out solve rate of the run at that iteration; None where it was not measured."""
    is_last: bool
    """Whether it is the newest of its run."""


def known_checkpoints(*, runs: int = 200, limit: int = 300) -> list[KnownCheckpoint]:
    """Return the newest checkpoints that exist, of runs that are not archived.

    Args:
        runs: number of runs whose folders are read, from the newest on.
        limit: number of checkpoints to return.
    """
    saved = Exists(Checkpoint.objects.filter(run=OuterRef("pk")))
    newest = Run.objects.filter(saved, archived_at=None).order_by("-id").values_list("id", flat=True)[:runs]
    present = {run_id: folders for run_id in newest if (folders := _present(run_id))}
    if not present:
        return []
    existing = reduce(
        or_, (Q(run=run_id, iteration__in=list(folders)) for run_id, folders in present.items())
    )
    heldout = Evaluation.objects.filter(
        run=OuterRef("run"), iteration=OuterRef("iteration"), name="heldout"
    ).values("solve_rate")
    rows = (
        Checkpoint.objects.filter(existing)
        .annotate(solve_rate=Subquery(heldout[:1]))
        .order_by("-saved_at", "-id")
        .values_list("run_id", "run__name", "iteration", "saved_at", "solve_rate")[:limit]
    )
    return [
        KnownCheckpoint(
            run_id, name, iteration, saved_at, reference(run_id, present[run_id][iteration]), rate,
            iteration == max(present[run_id]),
        )
        for run_id, name, iteration, saved_at, rate in rows
    ]  # fmt: skip


def find_known(words: str) -> list[KnownCheckpoint]:
    """Return the known checkpoints whose run, its name or reference contain every word, whatever the case."""
    wanted = words.lower().split()
    return [
        checkpoint
        for checkpoint in known_checkpoints()
        for text in [f"run {checkpoint.run_id} {checkpoint.run_name} {checkpoint.reference}".lower()]
        if all(word in text for word in wanted)
    ]


def reference(run_id: int, folder: Path) -> str:
    """Return the reference to a checkpoint's folder for configurations."""
    return f"{run_id}/checkpoints/{folder.name}"


def newest_checkpoint(run: Run) -> Checkpoint | None:
    """Return the newest checkpoint that was ever saved."""
    return Checkpoint.objects.filter(run=run).order_by("-iteration").first()


def find_checkpoint(run: Run, iteration: int) -> StoredCheckpoint | None:
    """Return one checkpoint; None if it was never saved or does not exist any more."""
    row = Checkpoint.objects.filter(run=run, iteration=iteration).first()
    folder = _present(run.pk).get(iteration)
    return _stored(row, folder) if row is not None and folder is not None else None


def _stored(row: Checkpoint, folder: Path) -> StoredCheckpoint:
    return StoredCheckpoint(row, folder, sum(path.stat().st_size for _, path in _files(folder)))


def _present(run_id: int) -> dict[int, Path]:
    """Return the complete checkpoint folders by iteration; names are read from disk, not from events."""
    root = run_folder(run_id) / "checkpoints"
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
        and any((Path(entry.path) / name).is_file() for name in (MANIFEST, WARM_START))
    }


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for directory, subfolders, names in os.walk(folder):
        subfolders.sort()  # os.walk visits them in this order
        for name in sorted(names):
            path = Path(directory) / name
            if path.is_file() and not path.is_symlink():
                yield path.relative_to(folder).as_posix(), path
