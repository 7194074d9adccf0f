"""Bulk storage of verifiers' scores."""

from __future__ import annotations

from engine.events.types import TestExamined, TrajectoryRef, TrajectoryScored
from webapp.rollouts.models.scores import ExaminedTest, Score
from webapp.rollouts.services.rows import moment
from webapp.runs.models.runs import Run

_KEY = ("run", "source", "phase", "iteration", "task_key", "index")
_Key = tuple[str, str, int, str, int]


def _values(model: type[Score] | type[ExaminedTest]) -> tuple[str, ...]:
    return tuple(field.name for field in model._meta.concrete_fields if field.name not in (*_KEY, "id"))


_VALUES, _TEST_VALUES = _values(Score), _values(ExaminedTest)


class ScoreStore:
    """Buffer of a locked run's scores and examined tests; the last one per trajectory wins."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._pending: dict[_Key, TrajectoryScored] = {}
        self._examined: dict[_Key, TestExamined] = {}

    def scored(self, event: TrajectoryScored) -> None:
        """Buffer a score."""
        self._pending[_key(event.source, event.ref)] = event

    def examined(self, event: TestExamined) -> None:
        """Buffer the result of an examined test."""
        self._examined[_key(event.source, event.ref)] = event

    def flush(self) -> None:
        """Write the buffered rows, one statement per table."""
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
        examined, self._examined = self._examined, {}
        tests = [
            ExaminedTest(
                run=self._run, source=source, source_epoch=event.source_epoch, phase=phase,
                iteration=iteration, task_key=task_key, index=index, time=moment(event.time),
                **event.test.model_dump(),
            )
            for (source, phase, iteration, task_key, index), event in examined.items()
        ]  # fmt: skip
        if tests:
            ExaminedTest.objects.bulk_create(
                tests, update_conflicts=True, unique_fields=_KEY, update_fields=_TEST_VALUES
            )


def _key(source: str, ref: TrajectoryRef) -> _Key:
    return source, ref.phase, ref.iteration, ref.task_id, ref.index
