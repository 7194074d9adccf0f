"""Frozen policies of a run: the base of its adapters, and its reference policy.

``freeze_policy`` links the files of a policy, and of the policy under its adapters, into the run's folder.
A hard link costs no space and outlives the original (``run:<id>`` names a run's *last* checkpoint; earlier
ones are pruned). Where hard links fail, small files are copied and large ones are linked symbolically, or
copied from a temporary folder. The files' hashes are recorded: a resumed attempt reads the same bits, or
fails with an error that names the changed file.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from engine.errors import CheckpointError
from engine.models.loader import open_model, save_policy_checkpoint
from engine.models.references import find_model
from engine.models.weights.adapted import BASE, base_folder
from engine.models.weights.checkpoint_folder import policy_files
from engine.models.weights.policy_files import ADAPTERS
from engine.reading import read_json

_RECORD = "frozen.json"
_COPIED_BYTES = 64 * 2**20
"""Size up to which files of another file system are copied."""


def freeze_policy(ref: str, folder: Path, *, home: Path, temporary: Path | None = None) -> Path:
    """Return a folder with a policy as it was when the run first used it.

    Args:
        ref: reference of the policy; ignored once the folder exists.
        folder: in the run's folder; created.
        home: the data folder, for ``run:<id>``.
        temporary: folder that is removed later; where links fail, its large files are copied, too.

    Raises:
        CheckpointError: there is no such policy, or a file of a frozen one has changed.
    """
    if not folder.exists():
        draft = folder.with_name(f".{folder.name}.{os.getpid()}.draft")
        shutil.rmtree(draft, ignore_errors=True)
        _fill(draft, ref, home, temporary)
        names = [path.relative_to(draft).as_posix() for path in sorted(draft.rglob("*")) if path.is_file()]
        record = {"from": ref, "files": _hashes(draft, names)}
        (draft / _RECORD).write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")
        draft.rename(folder)
        return folder
    verify_frozen(folder)
    return folder


def is_frozen(folder: Path) -> bool:
    """Return whether ``freeze_policy`` created a folder."""
    return (folder / _RECORD).is_file()


def _fill(draft: Path, ref: str, home: Path, temporary: Path | None) -> None:
    draft.parent.mkdir(parents=True, exist_ok=True)
    reference = find_model(ref, home=home)
    if reference.folder is None:
        model, tokenizer = open_model(ref, home=home).builtin()
        save_policy_checkpoint(draft, model, tokenizer, {"from": ref})
        return
    if reference.random:
        raise CheckpointError(
            f"'{ref}' has other weights each time it is opened: save it first, and name that folder"
        )
    if not reference.folder.is_dir():
        raise CheckpointError(f"there is no policy folder {reference.folder}")
    _link_policy(reference.folder, draft, temporary)


def _link_policy(source: Path, out: Path, temporary: Path | None) -> None:
    """Link a policy's files, and below ``base`` those of the policy under its adapters."""
    for path in policy_files(source):
        target = out / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        _link(path.resolve(), target, temporary)
    if (source / ADAPTERS).is_file():
        _link_policy(base_folder(source)[0], out / BASE, temporary)


def _link(source: Path, place: Path, temporary: Path | None) -> None:
    try:
        place.hardlink_to(source)
    except OSError:  # another file system, or one without links
        is_temporary = temporary is not None and source.is_relative_to(temporary.resolve())
        if is_temporary or source.stat().st_size <= _COPIED_BYTES:
            shutil.copyfile(source, place)
        else:
            place.symlink_to(source)


def verify_frozen(folder: Path) -> None:
    """Compare the files of a frozen policy with their recorded hashes.

    Raises:
        CheckpointError: a file is missing or has changed.
    """
    try:
        record = read_json(folder / _RECORD)
    except FileNotFoundError:
        return  # an earlier version made a full copy without a record
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {folder / _RECORD}: {error}") from error
    hashes = _hashes(folder, [name for name in record["files"] if (folder / name).is_file()])
    for name, expected in record["files"].items():
        if hashes.get(name) != expected:
            state = "has changed" if name in hashes else "is missing"
            raise CheckpointError(
                f"{(folder / name).resolve()} {state} since the run first used '{record['from']}': "
                "restore the file, or start a new run"
            )


def _hashes(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Return the SHA-256 of files by name."""
    with ThreadPoolExecutor() as hashing:  # hashing releases the GIL
        return dict(zip(names, hashing.map(_hash, (folder / name for name in names)), strict=True))


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
