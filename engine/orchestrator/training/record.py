"""Record of a training run's schedule in its spool: admissions, batches and finished trajectories.

An attempt after a kill trains on the recorded batches again, in their order, which gives the same weights bit
for bit. It keeps the finished trajectories of groups that are in no batch yet.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from engine.errors import TrainyardError
from engine.events.delivery.spool import read_lines
from engine.events.schedule import BatchSelected, SelectedGroup
from engine.events.token_block import decode
from engine.events.types import TrajectoryFinished
from engine.orchestrator.collection.ledger import type_of
from engine.orchestrator.collection.rollout_lines import RolloutLines, rollout_event
from engine.orchestrator.training.stragglers import LATE
from engine.orchestrator.training.task_weights import GroupOutcome
from engine.orchestrator.watch.event_observer import TRAIN_PHASE
from engine.rollout.recorded import RecordedTurns, Span, read_events, read_turns, recorded_step
from engine.tokens import TokenRecord
from engine.types import Grade, RolloutKey, TerminationReason, Timings, Trajectory


class GroupKey(NamedTuple):
    """Identity of a training group in its run."""

    iteration: int
    task_id: str


class Admission(NamedTuple):
    """Admission of a group."""

    updates: int
    """Updates made before the admission."""
    replaces: str | None = None
    """Task of the same iteration whose group it replaces."""


class TrainingRecord:
    """Admissions, batches and finished trajectories, of which only the byte spans are kept in memory."""

    def __init__(self, spool: Path) -> None:
        self._spool = spool
        self.admitted: dict[GroupKey, Admission] = {}
        """In the order of admission."""
        self.batches: dict[int, BatchSelected] = {}
        """By the iteration that trains on them."""
        self._lines: dict[GroupKey, dict[int, RolloutLines]] = {}
        self._reported: set[int] = set()
        """Synchronous iterations whose update was made."""

    @classmethod
    def read(cls, spool: Path, *, trained: int, is_sync: bool = False) -> TrainingRecord:
        """Read a spool; a missing one is an empty record.

        Args:
            spool: the run's spool.
            trained: number of iterations before the checkpoint, whose groups are no longer needed.
            is_sync: whether every iteration trains on its own groups, without recorded batches.
        """
        record = cls(spool)
        start = 0
        for line in read_lines(spool):
            record._add(type_of(line.data), line.data, Span(start, line.end), trained)
            start = line.end
        if is_sync:
            for key in [key for key in record._lines if key.iteration < trained]:
                del record._lines[key]
        else:
            record._reported.clear()
        return record

    def __contains__(self, key: GroupKey) -> bool:
        return key in self._lines

    @property
    def num_finished(self) -> int:
        """Return the number of kept trajectories that infrastructure did not lose."""
        lines = (rollout for group in self._lines.values() for rollout in group.values())
        return sum(rollout.finished is not None and not rollout.is_lost for rollout in lines)

    def trajectories(self, groups: Iterable[SelectedGroup]) -> list[tuple[Trajectory, ...]]:
        """Return the trajectories of groups of a recorded batch. Raises TrainyardError."""
        return [self._read(GroupKey(group.iteration, group.task_id), group.indices) for group in groups]

    def outcomes(self, iteration: int) -> list[GroupOutcome]:
        """Return the outcomes of a recorded batch."""
        outcomes = []
        batch = self.batches[iteration]
        for group in (*batch.groups, *batch.discarded):
            lines = self._lines.get(GroupKey(group.iteration, group.task_id), {})
            graded = [lines[index] for index in group.indices if index in lines and not lines[index].is_lost]
            solved, cut_short = (sum(map(attrgetter(name), graded)) for name in ("is_solved", "is_cut_short"))
            outcomes.append(GroupOutcome.counted(group.task_id, solved, len(graded), cut_short=cut_short))
        return outcomes

    def kept(self, key: GroupKey, *, with_lost: bool = False) -> dict[int, Trajectory]:
        """Return the finished trajectories of a group by index.

        Lost ones are left out by default, to be sampled again, unless a synchronous update was made without
        them: later rollouts were sampled from its weights.
        """
        lines = self._lines.get(key, {})
        with_lost = with_lost or key.iteration in self._reported
        indices = [
            index
            for index, rollout in lines.items()
            if rollout.finished is not None and (with_lost or not rollout.is_lost)
        ]
        return dict(zip(indices, self._read(key, indices), strict=True))

    def is_complete(self, key: GroupKey) -> bool:
        """Return whether a deadline has cancelled the last siblings of a group."""
        return any(rollout.cancelled == LATE for rollout in self._lines.get(key, {}).values())

    def turns(self, key: RolloutKey, *, version: int | None = None) -> RecordedTurns | None:
        """Return a reader of an unfinished rollout's recorded turns; None where there are none.

        Args:
            key: of the rollout.
            version: as in ``read_turns``.
        """
        lines = self._lines.get(GroupKey(key.iteration, key.task_id), {}).get(key.index)
        if lines is None or lines.finished is not None or not lines.steps:
            return None
        return partial(read_turns, self._spool, tuple(lines.steps), version=version)

    def _add(self, kind: str, line: bytes, span: Span, trained: int) -> None:
        match kind:
            case "group_admitted":
                event = json.loads(line)
                self.admitted.setdefault(
                    GroupKey(event["iteration"], event["task_id"]),
                    Admission(event["updates"], event.get("replaces")),
                )
            case "batch_selected":
                batch = BatchSelected.model_validate_json(line)
                self.batches[batch.iteration] = batch
                if batch.iteration < trained:
                    for group in (*batch.groups, *batch.discarded):
                        self._lines.pop(GroupKey(group.iteration, group.task_id), None)
            case "iteration_finished":
                self._reported.add(json.loads(line)["iteration"])
            case "trajectory_started" | "step_finished" | "trajectory_finished":
                self._add_rollout(kind, line, span)

    def _add_rollout(self, kind: str, line: bytes, span: Span) -> None:
        event = rollout_event(kind, line)
        if event is None or event.key.phase != TRAIN_PHASE:
            return
        group = self._lines.setdefault(GroupKey(event.key.iteration, event.key.task_id), {})
        group.setdefault(event.key.index, RolloutLines()).add(kind, line, span, event)

    def _read(self, key: GroupKey, indices: Iterable[int]) -> tuple[Trajectory, ...]:
        trajectories = []
        for index in indices:
            lines = self._lines.get(key, {}).get(index)
            if lines is None or lines.finished is None:
                raise TrainyardError(
                    f"{self._spool} has a batch with rollout {index} of task {key.task_id} (iteration "
                    f"{key.iteration}), but not its end: the spool is damaged; start the run again"
                )
            finished, *steps = read_events(self._spool, [lines.finished, *lines.steps])
            trajectories.append(recorded_trajectory(finished, steps))
        return tuple(trajectories)


def recorded_trajectory(finished: Mapping[str, Any], steps: Iterable[Mapping[str, Any]]) -> Trajectory:
    """Return a trajectory from its events, with all fields that training and metrics read.

    Outcomes of single tests, logs and findings are left out.
    """
    event = TrajectoryFinished.model_validate(finished)
    grade = None
    if event.verdict is not None:
        grade = Grade(
            verdict=event.verdict,
            reward=event.reward,
            seconds=event.graded_seconds,
            reused=event.reused_verdict,
            detail=event.detail,
            counterfactual=event.counterfactual,
            extra_runs=event.extra_runs,
            extra_seconds=event.extra_grading_seconds,
        )
    return Trajectory(
        key=RolloutKey(**event.ref.model_dump()),
        steps=tuple(map(recorded_step, steps)),
        termination=TerminationReason(event.termination),
        patch=event.patch,
        grade=grade,
        tokens=decode(event.tokens.data) if event.tokens is not None else TokenRecord(),
        timings=Timings(
            queue=event.queue_seconds,
            sandbox=event.sandbox_seconds,
            pull=event.pull_seconds,
            start=event.start_seconds,
            model=event.model_seconds,
            tools=event.tool_seconds,
            grading=event.grading_seconds,
            total=event.total_seconds,
        ),
        error=event.error,
        failure=event.failure,
        attempts=event.attempts,
        prompt=event.prompt,
        prompt_hash=event.prompt_hash,
        cost=event.cost,
    )
