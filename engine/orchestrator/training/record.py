"""Record of a training run's schedule in its spool: admissions, batches and finished trajectories.

An attempt that follows a killed one trains again on the batches that the record has, in their order, which
gives the same weights bit for bit, and keeps the finished trajectories of groups that are in no batch yet.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from engine.errors import TrainyardError
from engine.events.schedule import SelectedGroup
from engine.events.spool import read_lines
from engine.events.token_block import TokenBlock, decode
from engine.events.types import TrajectoryFinished
from engine.orchestrator.collection.ledger import type_of
from engine.orchestrator.training.task_weights import Outcome
from engine.rollout.summary import RolloutSummary
from engine.tokens import TokenRecord
from engine.types import Grade, RolloutKey, Step, TerminationReason, Timings, ToolCall, Trajectory

_REF = re.compile(rb'"ref":(\{"iteration":[0-9]+,"phase":"train",[^{}]*\})')
_STEP_FIELDS = tuple(one.name for one in fields(Step) if one.name != "call")
_HEAD_BYTES = 512
"""Length within which the line of a rollout names its key."""


class GroupKey(NamedTuple):
    """Identity of a training group in its run."""

    iteration: int
    task_id: str


class _Span(NamedTuple):
    start: int
    end: int


@dataclass(slots=True)
class _Lines:
    """Places of a rollout's events in the spool, those of its last attempt."""

    steps: list[_Span] = field(default_factory=list)
    finished: _Span | None = None
    is_lost: bool = False
    is_solved: bool = False


class TrainingRecord:
    """Admissions, batches and finished trajectories, of which only the places are kept in memory."""

    def __init__(self, spool: Path) -> None:
        self._spool = spool
        self.admitted: dict[GroupKey, int] = {}
        """Group → updates made before its admission; in the order of admission."""
        self.batches: dict[int, list[SelectedGroup]] = {}
        """Iteration → groups that it trains on."""
        self._lines: dict[GroupKey, dict[int, _Lines]] = {}

    @classmethod
    def read(cls, spool: Path, *, trained: int) -> TrainingRecord:
        """Read a spool; a missing one is an empty record.

        Args:
            spool: the run's spool.
            trained: iterations whose groups are not needed any more, those of the checkpoint.
        """
        record = cls(spool)
        start = 0
        for line in read_lines(spool):
            record._add(type_of(line.data), line.data, _Span(start, line.end), trained)
            start = line.end
        return record

    @property
    def num_finished(self) -> int:
        """Return the number of kept trajectories that infrastructure did not lose."""
        lines = (one for group in self._lines.values() for one in group.values())
        return sum(one.finished is not None and not one.is_lost for one in lines)

    def batch(self, iteration: int) -> list[tuple[SelectedGroup, tuple[Trajectory, ...]]]:
        """Return the groups of a recorded batch with their trajectories. Raises TrainyardError."""
        return [
            (group, self._read(GroupKey(group.iteration, group.task_id), group.indices))
            for group in self.batches[iteration]
        ]

    def outcomes(self, iteration: int) -> list[Outcome]:
        """Return the outcomes of a recorded batch."""
        found = []
        for group in self.batches[iteration]:
            lines = self._lines.get(GroupKey(group.iteration, group.task_id), {})
            graded = [lines[index] for index in group.indices if index in lines and not lines[index].is_lost]
            found.append(Outcome(group.task_id, sum(one.is_solved for one in graded), len(graded)))
        return found

    def kept(self, key: GroupKey) -> dict[int, Trajectory]:
        """Return the finished trajectories of a group by index, without those that infrastructure lost."""
        lines = self._lines.get(key, {})
        found = [index for index, one in lines.items() if one.finished is not None and not one.is_lost]
        return dict(zip(found, self._read(key, found), strict=True))

    def _add(self, kind: str, line: bytes, span: _Span, trained: int) -> None:
        match kind:
            case "group_admitted":
                event = json.loads(line)
                self.admitted.setdefault(GroupKey(event["iteration"], event["task_id"]), event["updates"])
            case "batch_selected":
                event = json.loads(line)
                groups = [SelectedGroup.model_validate(group) for group in event["groups"]]
                self.batches[event["iteration"]] = groups
                if event["iteration"] < trained:
                    for group in groups:
                        self._lines.pop(GroupKey(group.iteration, group.task_id), None)
            case "trajectory_started" | "step_finished" | "trajectory_finished":
                self._add_rollout(kind, line, span)

    def _add_rollout(self, kind: str, line: bytes, span: _Span) -> None:
        found = _REF.search(line[:_HEAD_BYTES])
        if found is None:
            return
        key = RolloutKey(**json.loads(found[1]))
        group = self._lines.setdefault(GroupKey(key.iteration, key.task_id), {})
        known = group.get(key.index)
        if kind == "trajectory_started" or known is None:
            known = group[key.index] = _Lines()
        if kind == "step_finished":
            known.steps.append(span)
        elif kind == "trajectory_finished":
            summary = RolloutSummary.from_event(line)
            known.finished, known.is_lost, known.is_solved = span, summary.is_lost, summary.is_solved

    def _read(self, key: GroupKey, indices: Iterable[int]) -> tuple[Trajectory, ...]:
        with self._spool.open("rb") as stream:

            def event(span: _Span) -> dict[str, Any]:
                stream.seek(span.start)
                found: dict[str, Any] = json.loads(stream.read(span.end - span.start))
                return found

            found = []
            for index in indices:
                lines = self._lines.get(key, {}).get(index)
                if lines is None or lines.finished is None:
                    raise TrainyardError(
                        f"{self._spool} has a batch with rollout {index} of task {key.task_id} (iteration "
                        f"{key.iteration}), but not its end: the spool is damaged; start the run again"
                    )
                found.append(recorded_trajectory(event(lines.finished), map(event, lines.steps)))
        return tuple(found)


def recorded_trajectory(finished: Mapping[str, Any], steps: Iterable[Mapping[str, Any]]) -> Trajectory:
    """Return a trajectory from its events: everything that training and metrics read of one.

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
        steps=tuple(_step(step) for step in steps),
        termination=TerminationReason(event.termination),
        patch=event.patch,
        grade=grade,
        tokens=_tokens(event.tokens),
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


def _step(event: Mapping[str, Any]) -> Step:
    call = ToolCall(name=event["tool"], arguments=event["arguments"]) if event["tool"] else None
    return Step(call=call, **{name: event[name] for name in _STEP_FIELDS})


def _tokens(block: TokenBlock | None) -> TokenRecord:
    return decode(block.data) if block is not None else TokenRecord()
