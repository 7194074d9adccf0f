"""Manifest of a run folder in a store: which objects are its spool and its files.

    claims/00002             attempt 2 exists: older attempts delete nothing any more
    attempts/00002.json      the manifest of attempt 2, written last; the newest is the run folder
    spool/, files/           objects that a manifest names, written once and never changed

A fenced attempt that still runs writes only its own objects and manifest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from engine.storage.store import Store, StoreError

ATTEMPTS, CLAIMS = "attempts", "claims"


class Segment(BaseModel):
    """Bytes ``start`` to ``end`` of the spool."""

    model_config = ConfigDict(frozen=True)
    start: int
    end: int
    object: str
    sha256: str


class StoredFile(BaseModel):
    """A file of the run folder, as it was when it was copied."""

    model_config = ConfigDict(frozen=True)
    object: str
    size: int
    mtime_ns: int


class Manifest(BaseModel):
    """Contents of a stored run folder."""

    model_config = ConfigDict(frozen=True)
    epoch: int
    last_epoch: int = 0
    """Attempt that wrote the last event of the spool."""
    last_seq: int = 0
    spool: tuple[Segment, ...] = ()
    files: Mapping[str, StoredFile] = {}
    """Files by their paths in the run folder."""

    @property
    def size(self) -> int:
        """Return the length of the spool, bytes."""
        return self.spool[-1].end if self.spool else 0

    @property
    def objects(self) -> set[str]:
        """Return the names of all objects of the run folder."""
        return {segment.object for segment in self.spool} | {file.object for file in self.files.values()}

    def write(self, store: Store) -> None:
        """Store the manifest under its attempt's number."""
        store.write(f"{ATTEMPTS}/{self.epoch:05d}.json", self.model_dump_json().encode())


def claim(store: Store, epoch: int) -> None:
    """Record that an attempt exists; call it before reading the manifest of an earlier one."""
    store.write(f"{CLAIMS}/{epoch:05d}", b"")


def newest_claim(store: Store) -> int:
    """Return the number of the newest attempt that claimed the run; 0 for none. Raises StoreError."""
    return _newest(store, CLAIMS)


def newest_manifest(store: Store) -> Manifest | None:
    """Return the newest manifest; None for a run that is not in the store. Raises StoreError."""
    epoch = _newest(store, ATTEMPTS)
    if not epoch:
        return None
    try:
        data: Any = store.read(f"{ATTEMPTS}/{epoch:05d}.json")
        return Manifest.model_validate_json(data)
    except ValidationError as error:
        raise StoreError(f"the manifest of the store {store.url} is unreadable: {error}") from error


def _newest(store: Store, folder: str) -> int:
    """Return the highest attempt number among the objects of a folder; 0 for none. Raises StoreError."""
    newest = 0
    for name in store.names(folder):
        try:
            newest = max(newest, int(name.rpartition("/")[2].removesuffix(".json")))
        except ValueError:
            raise StoreError(
                f"the store {store.url} contains {name}, which is not named after an attempt: remove it"
            ) from None
    return newest
