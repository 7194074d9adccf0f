"""Start of an attempt of a run that is kept in a store."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from engine.config.launcher import StorageConfig
from engine.errors import ConfigError, PreflightError, Problem
from engine.events.delivery.spool import SPOOL_NAME, SpoolSink, spool_position
from engine.storage.folder import restore
from engine.storage.manifest import Manifest, claim, newest_manifest
from engine.storage.mirror import Mirror
from engine.storage.store import Store, StoreError

WAIT_S = 300.0
"""Time for which an attempt that needs the store waits for it, seconds."""
_RETRY_S = 2.0

log = structlog.get_logger("storage")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedAttempt:
    """A started attempt whose run folder is as new as its store."""

    store: Store
    manifest: Manifest | None
    interval_s: float

    def mirror(self, sink: SpoolSink, *, on_fenced: Callable[[str], None]) -> Mirror:
        """Start to copy the attempt's run folder to the store."""
        return Mirror(self.store, sink, self.manifest, interval_s=self.interval_s, on_fenced=on_fenced)


def start_attempt(
    settings: StorageConfig, run_dir: Path, *, run_id: str, epoch: int, acked_seq: int
) -> StartedAttempt:
    """Claim the run for an attempt and restore its folder if it is empty or older.

    Args:
        settings: the store.
        run_dir: the run folder on this machine.
        run_id: the run's folder in the store.
        epoch: the attempt's number.
        acked_seq: number of the last event that the server has.

    Raises:
        ConfigError: a first attempt cannot use the store, or finds another run there.
        PreflightError: a later attempt could not restore its folder within ``WAIT_S``, or another process
            holds the run folder.
    """
    try:
        store = Store(settings.url, run_id)
    except StoreError as error:  # an unknown scheme, or a library that is not installed
        raise ConfigError(Problem(str(error), "storage.url")) from error
    manifest = _prepare(store, run_dir, epoch, acked_seq)
    return StartedAttempt(store=store, manifest=manifest, interval_s=settings.interval_s)


def _prepare(store: Store, run_dir: Path, epoch: int, acked_seq: int) -> Manifest | None:
    deadline = time.monotonic() + WAIT_S
    is_first = epoch == 1 and spool_position(run_dir / SPOOL_NAME) == (0, 0)
    while True:
        try:
            if is_first:
                store.check()
            return _begin(store, run_dir, epoch, is_first=is_first)
        except StoreError as error:
            if not is_first and spool_position(run_dir / SPOOL_NAME)[1] >= max(acked_seq, 1):
                log.warning("store_failed", why=str(error), remedy="the local run folder is as new")
                return None
            if is_first:
                raise ConfigError(Problem(str(error), "storage.url")) from error
            if time.monotonic() > deadline:
                raise PreflightError(str(error)) from error
            log.warning("store_failed", why=str(error), remedy="waiting for the store")
            time.sleep(_RETRY_S)


def _begin(store: Store, run_dir: Path, epoch: int, *, is_first: bool) -> Manifest | None:
    claim(store, epoch)
    manifest = newest_manifest(store)
    if manifest is None:
        return None
    if is_first:
        message = f"{store.url} holds another run of this number: give every installation a prefix of its own"
        raise ConfigError(Problem(message, "storage.url"))
    if restore(store, manifest, run_dir):
        log.info("run_restored", store=store.url, seq=manifest.last_seq, files=len(manifest.files))
    return manifest
