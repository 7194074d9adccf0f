"""Checkpoints of a training run: atomic, verified, and each usable as a policy folder.

``checkpoints/00007/`` is the state after 7 completed iterations:

    config.json, tokenizer.json, provenance.json, …   the policy without its weights
    shards/          weights and optimizer (DCP); each rank writes and reads its part
    training.pt      number of updates, torch's random state
    cursor.json      the orchestrator's position, its own dictionary
    manifest.json    size and SHA-256 of every file, and one checksum over all of them

``take_snapshot`` makes the ranks start writing, in place and without a copy; ``write_snapshot`` waits for
them and completes the checkpoint, maybe in a thread (``writer``). A checkpoint is written to a hidden folder,
flushed to the disk and renamed: it exists completely or not at all. A run has one writer, so hidden folders
found by the next save are leftovers and are removed.
To keep more state across a restart: put it in the cursor.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import structlog
import torch

from engine.errors import CheckpointError
from engine.files import numbered_folders, replace_folder
from engine.models.weights.checkpoint_folder import SHARDS
from engine.trainer.learner import Learner
from engine.trainer.shards import Fingerprint, fingerprint

FORMAT = 2
_READABLE = (1, FORMAT)
"""Formats whose policy can be opened; format 1 had whole weights beside the optimizer's state."""
MANIFEST = "manifest.json"

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    iteration: int
    """Completed iterations; 0 is the state before training."""
    path: Path
    """Policy folder; ``open_model(str(path), home=…)`` opens it."""
    checksum: str
    """SHA-256 over the names and hashes of all files."""
    cursor: Mapping[str, Any]
    format: int = FORMAT


PolicyFiles = Callable[[Path], None]
"""Writes the files of a policy folder other than the weights: configuration, tokenizer, provenance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """State of a run while the trainer writes its part of a checkpoint."""

    run_dir: Path
    iteration: int
    policy_files: PolicyFiles
    updates: int
    random_state: torch.Tensor
    shards: Future[dict[str, Fingerprint]]
    """Files that the trainer writes to the draft's ``shards``."""
    cursor: Mapping[str, Any]

    @property
    def draft(self) -> Path:
        """Return the hidden folder in which the checkpoint is assembled."""
        return self.run_dir / "checkpoints" / f".saving-{self.iteration:05d}"


def take_snapshot(
    run_dir: Path,
    iteration: int,
    *,
    trainer: Learner,
    policy_files: PolicyFiles,
    cursor: Mapping[str, Any],
) -> Snapshot:
    """Start a checkpoint; the run's previous one must be complete.

    Args:
        run_dir: the run's folder.
        iteration: completed iterations.
        trainer: starts writing weights and optimizer; torch's random state is kept.
        policy_files: writes the policy's other files.
        cursor: the orchestrator's position; must be JSON.

    Raises:
        ValueError: ``cursor`` is not JSON.
        TrainerError: the trainer has failed or was abandoned.
    """
    json.dumps(dict(cursor), allow_nan=False)
    root = run_dir / "checkpoints"
    root.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(root)
    draft = root / f".saving-{iteration:05d}"
    draft.mkdir()
    return Snapshot(
        run_dir=run_dir,
        iteration=iteration,
        policy_files=policy_files,
        updates=trainer.updates,
        random_state=torch.get_rng_state(),
        shards=trainer.save(draft / SHARDS),
        cursor=copy.deepcopy(dict(cursor)),
    )


def write_snapshot(snapshot: Snapshot) -> Checkpoint:
    """Complete ``run_dir/checkpoints/<iteration>``, replacing an existing checkpoint of that number."""
    root, draft = snapshot.run_dir / "checkpoints", snapshot.draft
    folder = root / f"{snapshot.iteration:05d}"
    snapshot.policy_files(draft)
    training = {"trainer": {"updates": snapshot.updates}, "torch_random": snapshot.random_state}
    torch.save(training, draft / "training.pt")
    _write_json(draft / "cursor.json", snapshot.cursor)
    files = {name: fingerprint(draft / name) for name in _files(draft) if not name.startswith(f"{SHARDS}/")}
    files |= {f"{SHARDS}/{name}": shard for name, shard in snapshot.shards.result().items()}
    manifest = {"format": FORMAT, "iteration": snapshot.iteration, "files": files}
    checksum = _checksum(manifest)
    _write_json(draft / MANIFEST, {**manifest, "checksum": checksum})
    for path in (*draft.rglob("*"), draft):
        _flush(path)
    replace_folder(draft, folder)
    _flush(root)
    return Checkpoint(
        iteration=snapshot.iteration,
        path=folder,
        checksum=checksum,
        cursor=dict(snapshot.cursor),
    )


def load_latest(run_dir: Path) -> Checkpoint | None:
    """Return the newest intact checkpoint; None if there are none. Damaged ones are skipped and logged.

    Raises:
        CheckpointError: all checkpoints are damaged; without an error, the run would start over silently.
    """
    folders = numbered_folders(run_dir / "checkpoints")
    for folder in reversed(folders):
        try:
            return read_checkpoint(folder)
        except CheckpointError as error:
            _log.warning("checkpoint.damaged", path=str(folder), reason=str(error))
    if folders:
        raise CheckpointError(
            f"none of the {len(folders)} checkpoints in {run_dir / 'checkpoints'} is intact; "
            "restore one, or remove the folder to start over"
        )
    return None


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read a checkpoint and verify every byte.

    Raises:
        CheckpointError: a file is missing, unknown or differs from the manifest.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        claimed, version = manifest.pop("checksum"), manifest["format"]
        files, iteration = dict(manifest["files"]), int(manifest["iteration"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{folder} has no readable {MANIFEST}: {error}") from error
    if version not in _READABLE:
        raise CheckpointError(f"{folder} has checkpoint format {version}; this version reads up to {FORMAT}")
    if claimed != _checksum(manifest):
        raise CheckpointError(f"{folder / MANIFEST} does not match its own checksum")
    present = set(_files(folder)) - {MANIFEST}
    if present != set(files):
        raise CheckpointError(
            f"{folder} has missing or extra files: {', '.join(sorted(present ^ set(files)))}"
        )
    with ThreadPoolExecutor() as hashing:  # hashing releases the GIL
        actual = dict(zip(files, hashing.map(fingerprint, (folder / name for name in files)), strict=True))
    for name, expected in files.items():
        if actual[name] != expected:
            raise CheckpointError(f"{folder / name} is not the file the manifest describes")
    cursor = json.loads((folder / "cursor.json").read_text())
    return Checkpoint(iteration=iteration, path=folder, checksum=claimed, cursor=cursor, format=version)


def restore_training(checkpoint: Checkpoint, trainer: Learner) -> None:
    """Restore the state of the trainer and of the process's random generators; the policy has the weights.

    Python's own ``random`` is not restored: only pauses between retries use it, never training.

    Raises:
        CheckpointError: unreadable, or the state of another model.
    """
    if checkpoint.format != FORMAT:
        raise CheckpointError(
            f"{checkpoint.path} was written by an earlier version, whose optimizer state is not read: start "
            "a new run with this folder as policy.checkpoint"
        )
    try:
        state = torch.load(checkpoint.path / "training.pt", map_location="cpu", weights_only=True)
        updates, random_state = int(state["trainer"]["updates"]), state["torch_random"]
    except (OSError, RuntimeError, KeyError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"cannot restore the training state of {checkpoint.path}: {error}") from error
    trainer.restore(checkpoint.path / SHARDS)
    trainer.updates = updates
    torch.set_rng_state(random_state)


def prune(
    run_dir: Path, keep: int, *, keep_best: int = 0, scores: Mapping[int, float] = MappingProxyType({})
) -> list[Path]:
    """Remove checkpoints that are neither recent nor among the best; return the removed folders.

    Args:
        run_dir: the run's folder.
        keep: number of most recent checkpoints to keep.
        keep_best: number of further checkpoints to keep, by highest score; of equal scores the later one.
        scores: iteration → score of its checkpoint, as far as it was evaluated.
    """
    folders = {int(folder.name): folder for folder in numbered_folders(run_dir / "checkpoints")}
    complete = [number for number, folder in folders.items() if (folder / MANIFEST).exists()]
    if len(complete) <= keep:
        return []
    scored = sorted((scores[number], number) for number in complete if number in scores)
    best = {number for _, number in scored[len(scored) - min(keep_best, len(scored)) :]}
    oldest_kept = complete[-keep]
    removed = [folder for number, folder in folders.items() if number < oldest_kept and number not in best]
    for folder in removed:
        # Renamed first: a half-deleted folder must not look like a checkpoint.
        hidden = folder.rename(folder.with_name(f".pruned-{folder.name}"))
        shutil.rmtree(hidden, ignore_errors=True)
    return removed


def _files(folder: Path) -> list[str]:
    """Return the relative names of all files, including those in subfolders."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _remove_leftovers(root: Path) -> None:
    """Remove drafts of killed saves; put back a checkpoint that ``replace_folder`` had set aside."""
    for retired in root.glob(".*-old-*/old"):
        name = retired.parent.name[1:].partition("-old-")[0]
        if not (root / name).exists():
            retired.rename(root / name)
    for path in root.glob(".*"):
        shutil.rmtree(path, ignore_errors=True)


def _checksum(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(dict(data), indent=2, sort_keys=True, allow_nan=False) + "\n")


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
