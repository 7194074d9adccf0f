"""Bulk storage of later verdicts."""

from __future__ import annotations

from engine.evaluation.flips import flip_of
from engine.events.types import TrajectoryRegraded
from webapp.rollouts.models.regrades import Regrade
from webapp.rollouts.services.rows import moment
from webapp.runs.models.runs import Run

_KEY = ("run", "source", "phase", "iteration", "task_key", "index")
_VALUES = tuple(field.name for field in Regrade._meta.concrete_fields if field.name not in (*_KEY, "id"))


class RegradeStore:
    """Buffer of a locked run's later verdicts; the last one per trajectory wins."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._pending: dict[tuple[str, str, int, str, int], TrajectoryRegraded] = {}

    def regraded(self, event: TrajectoryRegraded) -> None:
        """Buffer a verdict."""
        ref = event.ref
        self._pending[event.source, ref.phase, ref.iteration, ref.task_id, ref.index] = event

    def flush(self) -> None:
        """Write the buffered rows in one statement."""
        pending, self._pending = self._pending, {}
        rows = [self._row(event) for event in pending.values()]
        if rows:
            Regrade.objects.bulk_create(
                rows, update_conflicts=True, unique_fields=_KEY, update_fields=_VALUES
            )

    def _row(self, event: TrajectoryRegraded) -> Regrade:
        ref, record = event.ref, event.regrade
        values = record.model_dump(mode="json")
        return Regrade(
            run=self._run, source=event.source, source_epoch=event.source_epoch, phase=ref.phase,
            iteration=ref.iteration, task_key=ref.task_id, index=ref.index, time=moment(event.time),
            flip=flip_of(record.old_verdict, record.verdict),
            **{**values, "verdict": values["verdict"] or "", "obstacle": values["obstacle"] or ""},
        )  # fmt: skip
