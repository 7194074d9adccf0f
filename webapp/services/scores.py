"""Bulk storage of verifiers' scores."""

from __future__ import annotations

from engine.events.types import TrajectoryScored
from webapp.models import Run, Score
from webapp.services.trajectory_rows import moment

_KEY = ("run", "source", "phase", "iteration", "task_key", "index")
_VALUES = tuple(field.name for field in Score._meta.concrete_fields if field.name not in (*_KEY, "id"))


class ScoreStore:
    """Buffer of one locked run's scores; of several about one trajectory the last one counts."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._pending: dict[tuple[str, str, int, str, int], TrajectoryScored] = {}

    def scored(self, event: TrajectoryScored) -> None:
        """Buffer a score."""
        ref = event.ref
        self._pending[event.source, ref.phase, ref.iteration, ref.task_id, ref.index] = event

    def flush(self) -> None:
        """Write the buffer with one statement."""
        pending, self._pending = self._pending, {}
        rows = [
            Score(
                run=self._run, source=source, source_epoch=event.source_epoch, phase=phase,
                iteration=iteration, task_key=task_key, index=index, time=moment(event.time),
                **event.score.model_dump(),
            )
            for (source, phase, iteration, task_key, index), event in pending.items()
        ]  # fmt: skip
        if rows:
            Score.objects.bulk_create(rows, update_conflicts=True, unique_fields=_KEY, update_fields=_VALUES)
