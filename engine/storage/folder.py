"""Files of a run folder that are copied to a store, and their restoration."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from engine.events.delivery.shipper import CURSOR_NAME
from engine.events.delivery.spool import LOCK_NAME, SPOOL_NAME, lock_folder, spool_position
from engine.storage.manifest import Manifest
from engine.storage.store import Store, StoreError

_CONTAINERS = ("checkpoints", "rounds")
"""Folders whose entries become complete one by one; other folders become complete as a whole."""
_LOCAL = frozenset(
    {SPOOL_NAME, CURSOR_NAME, LOCK_NAME, "launch.json", "engine.log", "engine.pid", "failure.json", "engines"}
)
"""Entries that are not copied: stored separately, or specific to one attempt or machine."""


def entries(folder: Path) -> Iterator[Path]:
    """Yield the files and folders of a run that are complete as soon as they are visible."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.name.startswith(".") or path.name in _LOCAL:
            continue
        if path.is_dir() and (path.name in _CONTAINERS or folder.name == "rounds"):
            yield from entries(path)
        else:
            yield path


def restore(store: Store, manifest: Manifest, run_dir: Path) -> bool:
    """Restore a run folder to the state of its manifest if it is older; return whether it was.

    The spool is written last, so that an interrupted restoration is repeated.

    Raises:
        PreflightError: another process holds the run folder.
        StoreError: the store failed, or an object differs from the manifest.
    """
    lock = lock_folder(run_dir)
    try:
        spool = run_dir / SPOOL_NAME
        if spool_position(spool) >= (manifest.last_epoch, manifest.last_seq):
            return False
        spool.unlink(missing_ok=True)
        (run_dir / CURSOR_NAME).unlink(missing_ok=True)
        for path in [entry for entry in entries(run_dir) if entry.name != "config.json"]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for name in manifest.files:
            _restore_file(store, manifest, name, run_dir)
        restore_spool(store, manifest, spool)
        return True
    finally:
        lock.release()


def _restore_file(store: Store, manifest: Manifest, name: str, run_dir: Path) -> None:
    path, stored = run_dir / name, manifest.files[name]
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise StoreError(f"the manifest of the store {store.url} names a file outside of the run: {name}")
    if path.exists():
        return  # config.json, which the launcher wrote
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.restored")
    store.download(stored.object, draft)
    if (size := draft.stat().st_size) != stored.size:
        raise StoreError(f"{stored.object} of the store {store.url} has {size} bytes, not {stored.size}")
    os.utime(draft, ns=(stored.mtime_ns, stored.mtime_ns))
    draft.rename(path)


def restore_spool(store: Store, manifest: Manifest, spool: Path) -> None:
    """Write the spool of a manifest to a file.

    Raises:
        StoreError: the store failed, or a segment was changed after it was written.
    """
    draft = spool.with_name(f".{spool.name}.restored")
    with draft.open("wb") as file:
        for segment in manifest.spool:
            content = store.read(segment.object)
            if hashlib.sha256(content).hexdigest() != segment.sha256:
                raise StoreError(
                    f"{segment.object} of the store {store.url} was changed after it was written (SHA-256 is "
                    f"not {segment.sha256}); restore it from a backup of the store"
                )
            file.write(content)
        file.flush()
        os.fsync(file.fileno())
        if file.tell() != manifest.size:
            raise StoreError(
                f"the spool in the store {store.url} has {file.tell()} bytes, not {manifest.size}"
            )
    draft.chmod(0o600)
    draft.rename(spool)
