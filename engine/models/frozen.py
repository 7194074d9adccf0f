"""Policies that a run needs unchanged for as long as it lives: the base of its adapters, its reference.

``freeze_policy`` links the files of a policy into the run's folder. A link costs no space and survives that
the original is removed (``run:<id>`` names a run's *last* checkpoint, and earlier ones are pruned). Across
file systems small files are copied and large ones stay where they are. Hashes of all files are recorded: a
resumed attempt gets the same bits, or an error that says which file changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from engine.errors import CheckpointError
from engine.models.opening import open_model, save_policy_checkpoint
from engine.models.references import find_model

_RECORD = "frozen.json"
_COPIED_BYTES = 64 * 2**20
"""Size up to which files of another file system are copied."""


def freeze_policy(ref: str, folder: Path, *, home: Path) -> Path:
    """Return a folder that holds a policy as it was when the run first needed it.

    Args:
        ref: reference of the policy; not looked at once the folder exists.
        folder: in the run's folder; created.
        home: the data folder, for ``run:<id>``.

    Raises:
        CheckpointError: there is no such policy, or a file of a frozen one has changed.
    """
    if not folder.exists():
        draft = folder.with_name(f".{folder.name}.{os.getpid()}.draft")
        shutil.rmtree(draft, ignore_errors=True)
        _fill(draft, ref, home)
        record = {"from": ref, "files": _hashes(draft)}
        (draft / _RECORD).write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")
        draft.rename(folder)
        return folder
    _verify(folder)
    return folder


def _fill(draft: Path, ref: str, home: Path) -> None:
    draft.parent.mkdir(parents=True, exist_ok=True)
    found = find_model(ref, home=home)
    if found.folder is None:
        model, tokenizer = open_model(ref, home=home).builtin()
        save_policy_checkpoint(draft, model, tokenizer, {"from": ref})
        return
    if found.random:
        raise CheckpointError(
            f"'{ref}' has other weights each time it is opened: save it first, and name that folder"
        )
    if not found.folder.is_dir():
        raise CheckpointError(f"there is no policy folder {found.folder}")
    for path in sorted(found.folder.rglob("*")):
        if path.is_file() and path.name != _RECORD:
            place = draft / path.relative_to(found.folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            _link(path.resolve(), place)


def _link(source: Path, place: Path) -> None:
    try:
        place.hardlink_to(source)
    except OSError:  # another file system, or one without links
        if source.stat().st_size <= _COPIED_BYTES:
            shutil.copyfile(source, place)
        else:
            place.symlink_to(source)


def _verify(folder: Path) -> None:
    try:
        record = json.loads((folder / _RECORD).read_text())
    except FileNotFoundError:
        return  # of an earlier version: a full copy, which nothing else writes
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {folder / _RECORD}: {error}") from error
    found = _hashes(folder)
    for name, expected in record["files"].items():
        if found.get(name) != expected:
            state = "has changed" if name in found else "is missing"
            raise CheckpointError(
                f"{(folder / name).resolve()} {state} since the run first used '{record['from']}': "
                "restore the file, or start a new run"
            )


def _hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of all files by name."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != _RECORD]
    with ThreadPoolExecutor() as hashing:  # the hash releases the interpreter
        found = hashing.map(_hash, paths)
    return {path.relative_to(folder).as_posix(): value for path, value in zip(paths, found, strict=True)}


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
