"""Writes checkpoints while training goes on, one at a time, and keeps those the policy asks for."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from engine.trainer.checkpoint import Checkpoint, Snapshot, prune, write_snapshot


class CheckpointWriter:
    """A thread that writes one snapshot at a time.

    Killed at any moment, it leaves the checkpoints before intact and nothing half (``checkpoint``).

    Args:
        run_dir: the run's folder.
        keep: how many of the last checkpoints are kept.
        keep_best: how many of those with the highest scores are kept besides.
    """

    def __init__(self, run_dir: Path, *, keep: int, keep_best: int = 0) -> None:
        self._run_dir, self._keep, self._keep_best = run_dir, keep, keep_best
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._current: Future[Checkpoint] | None = None

    def save(self, snapshot: Snapshot) -> None:
        """Begin to write; call ``wait`` before the snapshot is taken."""
        assert self._current is None, "a snapshot is taken before the one before it is written"
        self._current = self._thread.submit(self._write, snapshot)

    def finished(self) -> Checkpoint | None:
        """Return what was written since the last call, without waiting. Raises what went wrong writing it."""
        return self.wait() if self._current is not None and self._current.done() else None

    def wait(self) -> Checkpoint | None:
        """Wait for what is being written and return it, once. Raises what went wrong."""
        current, self._current = self._current, None
        return None if current is None else current.result()

    def close(self) -> None:
        """Wait for what is being written and end the thread."""
        self._thread.shutdown(wait=True)

    def _write(self, snapshot: Snapshot) -> Checkpoint:
        written = write_snapshot(snapshot)
        prune(self._run_dir, self._keep, keep_best=self._keep_best)
        return written
