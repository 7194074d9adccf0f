"""Checkpoints of a training run: atomic, verified, and each usable as a policy folder.

``checkpoints/00007/`` is the state after 7 completed iterations:

    config.json, model.safetensors, tokenizer.json, …   the policy (``engine.models.opening``), float32
    training.pt      optimizer and trainer state, torch's random state
    shards/          instead of the optimizer in training.pt: what several ranks wrote, each its part (DCP)
    cursor.json      the orchestrator's position, its own dictionary
    manifest.json    size and SHA-256 of every file, and one checksum over all of them

``take_snapshot`` copies the state, ``write_snapshot`` writes it, maybe later in a thread
(``writer``). A checkpoint is written to a hidden folder, flushed to the disk and renamed: it is
there completely or not at all. A run has one writer, so hidden folders found by the next save are leftovers
and are removed.
To keep something more across a restart: put it in the cursor.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import structlog
import torch

from engine.errors import CheckpointError
from engine.models.builtin.tokenizer import BpeTokenizer
from engine.models.builtin.transformer import Transformer
from engine.models.opening import save_policy_checkpoint

FORMAT = 1
MANIFEST = "manifest.json"
SHARDS = "shards"

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
    score: float | None = None
    """Score for retention, higher is better; None: not evaluated."""


class Learner(Protocol):
    """Interface of a trainer (single or a group of ranks) that checkpoints need."""

    def state_dict(self) -> dict[str, Any]:
        """Return the trainer's state except the part written by ``save_shards``."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state. Raises CheckpointError."""

    def save_shards(self, folder: Path) -> bool:
        """Let each rank write its part of the state; return False when there are no parts."""

    def load_shards(self, folder: Path) -> None:
        """Read the output of ``save_shards``, for any number of ranks. Raises CheckpointError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Copied state of the run, which can be written while training continues."""

    run_dir: Path
    iteration: int
    model: Transformer
    tokenizer: BpeTokenizer
    state: Mapping[str, Any]
    shards: Path | None
    """Files written by the trainer's ranks; moved into the checkpoint."""
    cursor: Mapping[str, Any]
    provenance: Mapping[str, Any]
    score: float | None


def take_snapshot(
    run_dir: Path,
    iteration: int,
    *,
    model: Transformer,
    tokenizer: BpeTokenizer,
    trainer: Learner,
    cursor: Mapping[str, Any],
    provenance: Mapping[str, Any],
    score: float | None = None,
) -> Snapshot:
    """Copy the state for a checkpoint; no other snapshot of the run may still be being written.

    Args:
        run_dir: the run's folder.
        iteration: completed iterations.
        model: the weights.
        tokenizer: the model's.
        trainer: its state and torch's random state are kept.
        cursor: the orchestrator's position; must be JSON.
        provenance: the origin of the weights; must be JSON.
        score: the score for retention, higher is better; None: not evaluated.

    Raises:
        ValueError: ``cursor`` or ``provenance`` is not JSON.
    """
    json.dumps([dict(cursor), dict(provenance)], allow_nan=False)
    root = run_dir / "checkpoints"
    root.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(root)
    shards = root / f".shards-{iteration:05d}"
    return Snapshot(
        run_dir=run_dir,
        iteration=iteration,
        model=copy.deepcopy(model).cpu(),
        tokenizer=tokenizer,
        shards=shards if trainer.save_shards(shards) else None,
        state={
            "trainer": copy.deepcopy(trainer.state_dict()),
            "torch_random": torch.get_rng_state(),
        },
        cursor=copy.deepcopy(dict(cursor)),
        provenance=dict(provenance),
        score=score,
    )


def write_snapshot(snapshot: Snapshot) -> Checkpoint:
    """Write ``run_dir/checkpoints/<iteration>``, replacing an existing checkpoint of that number."""
    root = snapshot.run_dir / "checkpoints"
    draft, folder = root / f".saving-{snapshot.iteration:05d}", root / f"{snapshot.iteration:05d}"
    save_policy_checkpoint(draft, snapshot.model, snapshot.tokenizer, snapshot.provenance)
    torch.save(dict(snapshot.state), draft / "training.pt")
    _write_json(draft / "cursor.json", snapshot.cursor)
    if snapshot.shards is not None:
        snapshot.shards.rename(draft / SHARDS)
    files = {name: _fingerprint(draft / name) for name in _files(draft)}
    manifest = {"format": FORMAT, "iteration": snapshot.iteration, "score": snapshot.score, "files": files}
    checksum = _checksum(manifest)
    _write_json(draft / MANIFEST, {**manifest, "checksum": checksum})
    for path in (*draft.rglob("*"), draft):
        _flush(path)
    if folder.exists():
        folder.rename(root / f".replaced-{snapshot.iteration:05d}")
    draft.rename(folder)
    _flush(root)
    _remove_leftovers(root)
    return Checkpoint(
        iteration=snapshot.iteration,
        path=folder,
        checksum=checksum,
        cursor=dict(snapshot.cursor),
        score=snapshot.score,
    )


def load_latest(run_dir: Path) -> Checkpoint | None:
    """Return the newest intact checkpoint; None if there are none. Damaged ones are skipped and logged.

    Raises:
        CheckpointError: there are checkpoints and all are damaged: going on would silently start over.
    """
    folders = _folders(run_dir)
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
        CheckpointError: a file is missing, unknown or not what the manifest says.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        claimed, version = manifest.pop("checksum"), manifest["format"]
        files, iteration = dict(manifest["files"]), int(manifest["iteration"])
        score = manifest.get("score")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{folder} has no readable {MANIFEST}: {error}") from error
    if version != FORMAT:
        raise CheckpointError(f"{folder} has checkpoint format {version}; this version reads {FORMAT}")
    if claimed != _checksum(manifest):
        raise CheckpointError(f"{folder / MANIFEST} does not match its own checksum")
    present = set(_files(folder)) - {MANIFEST}
    if present != set(files):
        raise CheckpointError(
            f"{folder} has missing or extra files: {', '.join(sorted(present ^ set(files)))}"
        )
    for name, expected in files.items():
        if _fingerprint(folder / name) != expected:
            raise CheckpointError(f"{folder / name} is not the file the manifest describes")
    cursor = json.loads((folder / "cursor.json").read_text())
    return Checkpoint(iteration=iteration, path=folder, checksum=claimed, cursor=cursor, score=score)


def restore_training(checkpoint: Checkpoint, trainer: Learner) -> None:
    """Restore the state of the trainer and of the process's random generators; the policy holds the weights.

    Python's own ``random`` is not part of it: pauses between retries draw from it, training never does.

    Raises:
        CheckpointError: unreadable, or the state of another model.
    """
    try:
        state = torch.load(checkpoint.path / "training.pt", map_location="cpu", weights_only=True)
        trainer.load_state_dict(state["trainer"])
        if (checkpoint.path / SHARDS).is_dir():
            trainer.load_shards(checkpoint.path / SHARDS)
        torch.set_rng_state(state["torch_random"])
    except (OSError, RuntimeError, KeyError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"cannot restore the training state of {checkpoint.path}: {error}") from error


def prune(run_dir: Path, keep: int, *, keep_best: int = 0) -> list[Path]:
    """Remove all checkpoints but the last ``keep`` and the ``keep_best`` with the highest scores.

    Of equal scores the later one is kept. Returns the removed folders.
    """
    complete = [folder for folder in _folders(run_dir) if (folder / MANIFEST).exists()]
    if len(complete) <= keep:
        return []
    scored = [(score, folder) for folder in complete if (score := _score(folder)) is not None]
    best = {folder for _, folder in sorted(scored)[len(scored) - min(keep_best, len(scored)) :]}
    oldest_kept = complete[-keep]
    removed = [folder for folder in _folders(run_dir) if folder < oldest_kept and folder not in best]
    for folder in removed:
        # Renamed first: a half-deleted folder must not be taken for a checkpoint.
        hidden = folder.rename(folder.with_name(f".pruned-{folder.name}"))
        shutil.rmtree(hidden, ignore_errors=True)
    return removed


def _score(folder: Path) -> float | None:
    try:
        score = json.loads((folder / MANIFEST).read_text()).get("score")
    except (OSError, ValueError, AttributeError):
        return None
    return float(score) if score is not None else None


def _files(folder: Path) -> list[str]:
    """Return the relative names of all files, including those in subfolders."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _folders(run_dir: Path) -> list[Path]:
    return sorted(path for path in (run_dir / "checkpoints").glob("[0-9]*") if path.is_dir())


def _remove_leftovers(root: Path) -> None:
    for path in root.glob(".*"):
        shutil.rmtree(path, ignore_errors=True)


def _fingerprint(path: Path) -> dict[str, str | int]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


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
