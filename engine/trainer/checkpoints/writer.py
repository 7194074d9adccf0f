"""Background writer of checkpoints, one at a time, with retention."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType

from engine.trainer.checkpoints.checkpoint import Checkpoint, Snapshot, prune, write_snapshot


class CheckpointWriter:
    """Thread that writes one snapshot at a time.

    If killed at any moment, earlier checkpoints stay intact and no partial one remains (see ``checkpoint``).

    Args:
        run_dir: the run's folder.
        keep: number of most recent checkpoints to keep.
        keep_best: number of further checkpoints to keep, by highest score.
    """

    def __init__(self, run_dir: Path, *, keep: int, keep_best: int = 0) -> None:
        self._run_dir, self._keep, self._keep_best = run_dir, keep, keep_best
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._current: Future[Checkpoint] | None = None

    def save(self, snapshot: Snapshot, scores: Mapping[int, float] = MappingProxyType({})) -> None:
        """Start writing a snapshot; call ``wait`` before the snapshot is taken.

        Args:
            snapshot: the snapshot to write.
            scores: iteration → score of the checkpoints so far, as far as they were evaluated.
        """
        assert self._current is None, "a snapshot is taken before the previous one is written"
        self._current = self._thread.submit(self._write, snapshot, scores)

    def finished(self) -> Checkpoint | None:
        """Return the checkpoint written since the last call, without waiting. Raises errors of writing."""
        return self.wait() if self._current is not None and self._current.done() else None

    def wait(self) -> Checkpoint | None:
        """Wait for the checkpoint being written and return it, once. Raises errors of writing."""
        current, self._current = self._current, None
        return None if current is None else current.result()

    def prune(self, scores: Mapping[int, float]) -> None:
        """Remove checkpoints neither recent nor among the best, as ``save`` does; call ``wait`` before."""
        prune(self._run_dir, self._keep, keep_best=self._keep_best, scores=scores)

    def close(self) -> None:
        """Wait for the checkpoint being written and stop the thread."""
        self._thread.shutdown(wait=True)

    def _write(self, snapshot: Snapshot, scores: Mapping[int, float]) -> Checkpoint:
        written = write_snapshot(snapshot)
        self.prune(scores)
        return written
