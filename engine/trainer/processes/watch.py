"""Supervision of a trainer's ranks by their controller: which have ended, failed, or fallen silent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection, wait

from engine.errors import CheckpointError, RankLostError, TrainerError, UpdateAbandonedError
from engine.trainer.shards import Fingerprint

_POLL_S = 0.1
_SETTLE_S = 5.0
"""Time in which the cause of a failure is looked for: a rank that dies makes others fail, seconds."""


class RankWatch:
    """Thread that receives the ranks' events. On a failure it stops all ranks and keeps the reason.

    Args:
        events: the connection ``events`` of each rank.
        timeout_s: maximum time without a sign of life, seconds.
        stop: ends all ranks at once; called once, on failure.
    """

    def __init__(self, events: Sequence[Connection], *, timeout_s: float, stop: Callable[[], None]) -> None:
        self._events = list(events)
        self._timeout_s = timeout_s
        self._stop = stop
        self._lock = threading.Lock()
        self._lost: dict[int, tuple[bool, str]] = {}
        """Rank → whether it ended without a word, and what happened to it."""
        self._settled = float("inf")
        """Time at which the cause of a failure is no longer looked for."""
        self._abandoned, self._closing = threading.Event(), threading.Event()
        self._ended = threading.Event()
        self._failure: TrainerError | None = None
        self._saving: Future[dict[str, Fingerprint]] | None = None
        self._written: dict[int, dict[str, Fingerprint]] = {}
        self._unwritten: tuple[float, CheckpointError] | None = None
        """First failed write, and when it counts: a rank that dies makes the writes of others fail."""
        self._thread = threading.Thread(target=self._run, name="rank-watch", daemon=True)
        self._thread.start()

    def expect_shards(self) -> Future[dict[str, Fingerprint]]:
        """Return the files that all ranks will have written; one write at a time."""
        with self._lock:
            self._saving, self._written, self._unwritten = Future(), {}, None
            if self._failure is not None:
                self._saving.set_exception(self._failure)
            return self._saving

    def abandon(self) -> None:
        """Stop all ranks as soon as no checkpoint is being written."""
        self._abandoned.set()

    def failure(self) -> TrainerError:
        """Wait until all ranks are stopped and return the reason."""
        self._ended.wait()
        assert self._failure is not None
        return self._failure

    def check(self) -> None:
        """Raise the reason if the ranks are stopped."""
        if self._ended.is_set():
            raise self.failure()

    def close(self) -> None:
        """Stop watching."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        seen = [time.monotonic()] * len(self._events)
        failure: TrainerError | None = None
        while failure is None and not self._closing.is_set():
            pending = {c: rank for rank, c in enumerate(self._events) if rank not in self._lost}
            for connection in wait(list(pending), timeout=_POLL_S):
                assert isinstance(connection, Connection)
                rank = pending[connection]
                seen[rank] = time.monotonic()
                self._receive(rank, connection)
            failure = self._reason(seen)
            if failure is None:
                self._fail_write()
        if failure is not None:
            self._stop()
        with self._lock:
            self._failure = failure or TrainerError("the trainer is closed")
            if self._saving is not None and not self._saving.done():
                unwritten = self._unwritten[1] if self._unwritten and failure is None else None
                self._saving.set_exception(unwritten or self._failure)
        self._ended.set()

    def _receive(self, rank: int, connection: Connection) -> None:
        try:
            kind, content = connection.recv()
        except (EOFError, OSError):
            self._lost[rank] = True, "ended unexpectedly"
            return
        if kind == "failed":
            self._lost[rank] = False, f"failed: {content}"
        if self._saving is None or self._saving.done():
            return
        if kind == "unwritten":
            error = CheckpointError(f"rank {rank} cannot write its shards: {content}")
            self._unwritten = self._unwritten or (time.monotonic() + _SETTLE_S, error)
        elif kind == "written":
            self._written[rank] = content
            if len(self._written) == len(self._events):
                files = {name: found for own in self._written.values() for name, found in own.items()}
                self._saving.set_result(files)

    def _fail_write(self) -> None:
        """Report a failed write that no rank's end explains."""
        with self._lock:
            if self._unwritten is None or self._saving is None or time.monotonic() < self._unwritten[0]:
                return
            if not self._saving.done():
                self._saving.set_exception(self._unwritten[1])

    def _reason(self, seen: Sequence[float]) -> TrainerError | None:
        """Return why the ranks must be stopped, as soon as it is clear."""
        now = time.monotonic()
        for rank, at in enumerate(seen):
            if rank not in self._lost and now - at > self._timeout_s:
                self._lost[rank] = True, f"gave no sign of life for {self._timeout_s:g} s"
        if self._lost:
            self._settled = min(self._settled, now + _SETTLE_S)
            # A rank that ended without a word makes others fail, not conversely.
            rank, (is_silent, text) = max(self._lost.items(), key=lambda lost: lost[1][0])
            if is_silent or len(self._lost) == len(seen) or now >= self._settled:
                error = RankLostError if is_silent else TrainerError
                return error(f"rank {rank} of the trainer {text}")
        if self._abandoned.is_set() and (self._saving is None or self._saving.done()):
            return UpdateAbandonedError("the update was abandoned: go on from the last checkpoint")
        return None
