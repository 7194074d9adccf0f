"""Finished trajectories of earlier runs, read from their spools one at a time.

A first pass finds the valid terminal record of each trajectory: an attempt that resumed from a checkpoint
invalidates the records after it. A second pass assembles the trajectories.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import structlog

from engine.datasets.replaced import RowIdentity
from engine.datasets.store import load_dataset
from engine.errors import ConfigError, DatasetError, Problem
from engine.events.delivery.spool import SPOOL_NAME, SpoolLine, read_lines
from engine.orchestrator.collection.ledger import epoch_of, is_kept, type_of
from engine.orchestrator.context import RunContext
from engine.rollout.summary import RolloutSummary
from engine.types import RolloutKey, Step, TaskRow, TerminationReason, ToolCall, Verdict
from engine.verifiers.execution_free import Transcript, turn_of

log = structlog.get_logger("orchestrator")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryId:
    """Identity of a trajectory across runs."""

    run: str
    """The run's folder."""
    epoch: int | None
    """Attempt that sampled it; a later attempt may sample another trajectory under the same key."""
    key: RolloutKey

    def __str__(self) -> str:
        key = self.key
        return f"{self.run}/{key.phase}/{key.iteration}/{key.task_id}/{key.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTrajectory:
    """Finished trajectory, as the input of a verifier, and its verdict."""

    id: TrajectoryId
    instance_id: str
    split: str
    """Split of its task."""
    transcript: Transcript
    resolved: bool
    submitted: bool
    """Whether the agent ended it by submitting."""


class StoredTrajectories:
    """Finished trajectories of one run, without those that infrastructure lost.

    Args:
        run_dir: the run's folder.
        home: the data folder, with the datasets of the run's tasks.
        phases: phases to read; empty reads all.

    Raises:
        ConfigError: the folder holds no run with trajectories.
    """

    def __init__(self, run_dir: Path, *, home: Path, phases: Collection[str] = ()) -> None:
        self._spool = run_dir / SPOOL_NAME
        self.name = run_dir.name
        self._home = home
        try:
            self._config: Mapping[str, Any] = json.loads((run_dir / "config.json").read_text())
        except (OSError, ValueError) as error:
            message = f"there is no run '{self.name}' with a readable config.json"
            raise ConfigError(Problem(message, "verifier.runs")) from error
        records, has_ended = _terminal_records(self._spool)
        self.has_ended = has_ended
        """Whether the newest attempt has ended, as far as the spool was read."""
        self.ids = {
            TrajectoryId(run=self.name, epoch=epoch, key=key): offset
            for key, (offset, epoch) in records.items()
            if not phases or key.phase in phases
        }
        """Trajectory → end offset of its terminal record, in the order of the spool."""

    def read(self, wanted: Collection[TrajectoryId]) -> Iterator[StoredTrajectory]:
        """Yield trajectories in the order in which they finished, without those whose task is unknown."""
        steps: dict[RolloutKey, list[Step]] = {}
        for line in read_lines(self._spool):
            kind = type_of(line.data)
            if kind not in ("trajectory_started", "step_finished", "trajectory_finished"):
                continue
            event = json.loads(line.data)
            key = RolloutKey(**event["ref"])
            if kind == "step_finished":
                steps.setdefault(key, []).append(_step(event))
                continue
            turns = tuple(turn_of(step) for step in steps.pop(key, ()))
            identity = TrajectoryId(run=self.name, epoch=epoch_of(line.data), key=key)
            if kind == "trajectory_started" or identity not in wanted or self.ids.get(identity) != line.end:
                continue
            row = self.rows.get(key.task_id)
            if row is None:
                continue
            transcript = Transcript(problem=row.task.problem_statement, turns=turns, patch=event["patch"])
            yield StoredTrajectory(
                id=identity,
                instance_id=row.task.instance_id,
                split=row.split,
                transcript=transcript,
                resolved=event["verdict"] == Verdict.PASSED,
                submitted=event["termination"] == TerminationReason.SUBMITTED,
            )

    def terminal_records(self) -> Iterator[tuple[TrajectoryId, SpoolLine]]:
        """Yield the valid terminal record of each trajectory, in the order in which they finished."""
        by_end = {end: identity for identity, end in self.ids.items()}
        for line in read_lines(self._spool):
            if (identity := by_end.get(line.end)) is not None:
                yield identity, line

    def patch_at(self, offset: int) -> str:
        """Return the patch in the terminal record that begins at a byte offset of the spool."""
        patch: str = json.loads(next(read_lines(self._spool, offset)).data)["patch"]
        return patch

    @property
    def environment(self) -> str:
        """Return the type of the environment in which the agents acted."""
        return str((self._config.get("environment") or {}).get("type", "swe"))

    @cached_property
    def rows(self) -> Mapping[str, TaskRow]:
        """Return the tasks of the run's datasets by id; a dataset that cannot be read is left out."""
        rows: dict[str, TaskRow] = {}
        for name in self.datasets:
            try:
                rows |= {row.task.id: row for row in load_dataset(self._home, name).rows}
            except DatasetError as error:
                log.warning("dataset_not_read", run=self.name, dataset=name, error=str(error))
        return rows

    @property
    def datasets(self) -> Collection[str]:
        """Return the names of the datasets of the run's tasks."""
        sections = (self._config.get("dataset"), self._config.get("evaluation"))
        names = (section.get("name") or section.get("dataset") for section in sections if section)
        return tuple(dict.fromkeys(filter(None, names)))

    def without_task(self) -> dict[TrajectoryId, str]:
        """Return the trajectories whose task is unknown, with the reason."""
        names = " and ".join(f"'{name}'" for name in self.datasets) or "none"
        return {
            key: f"task {key.key.task_id} is not in the datasets of run {self.name} ({names}); restore it"
            for key in self.ids
            if key.key.task_id not in self.rows
        }


def open_sources(
    run: RunContext,
    names: Sequence[str],
    *,
    setting: str,
    phases: Collection[str] = (),
    unfinished: bool = False,
) -> list[StoredTrajectories]:
    """Open the trajectories of other runs, named by a setting.

    Args:
        run: the run that reads them.
        names: folders of the other runs.
        setting: name of the setting, for errors.
        phases: phases to read; empty reads all.
        unfinished: whether an unfinished run may have no trajectories yet.

    Raises:
        ConfigError: a run does not exist, or has no graded trajectories in these phases.
    """
    sources = []
    for name in dict.fromkeys(names):
        try:
            source = StoredTrajectories(run.run_dir.parent / name, home=run.home, phases=phases)
        except ConfigError as error:
            raise ConfigError(*(Problem(problem.message, setting) for problem in error.problems)) from error
        if not source.ids and (source.has_ended or not unfinished):
            raise ConfigError(Problem(f"run '{name}' has no graded trajectories in these phases", setting))
        sources.append(source)
    return sources


def patches_with(
    verdict: Verdict, sources: Iterable[StoredTrajectories], *, limit: int
) -> dict[tuple[str, str], list[str]]:
    """Return different patches of trajectories with a verdict, by ``RowIdentity.start`` of their tasks.

    Args:
        verdict: the verdict.
        sources: runs; trajectories whose task is unknown are left out.
        limit: maximum number of patches of a task.
    """
    patches: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for source in sources:
        for identity, line in source.terminal_records():
            row = source.rows.get(identity.key.task_id)
            event = json.loads(line.data)
            if row is None or event["verdict"] != verdict or not event["patch"].strip():
                continue
            known = patches[RowIdentity.of(row).start]
            if len(known) < limit and event["patch"] not in known:
                known.append(event["patch"])
    return patches


def _terminal_records(spool: Path) -> tuple[dict[RolloutKey, tuple[int, int | None]], bool]:
    """Return end offset and attempt of each valid terminal record, and whether the run has ended.

    Rollouts that infrastructure lost are left out.
    """
    records: dict[RolloutKey, tuple[int, int | None]] = {}
    has_ended = False
    for line in read_lines(spool):
        match type_of(line.data):
            case "trajectory_finished":
                rollout = RolloutSummary.from_event(line.data)
                if not rollout.is_lost:
                    records.setdefault(rollout.key, (line.end, epoch_of(line.data)))
            case "run_finished":
                has_ended = True
            case "run_started":
                has_ended = False
                event = json.loads(line.data)
                records = {
                    key: record
                    for key, record in records.items()
                    if is_kept((key.iteration, key.phase), event)
                }
    return records, has_ended


def _step(event: Mapping[str, Any]) -> Step:
    call = ToolCall(name=event["tool"], arguments=event["arguments"]) if event["tool"] else None
    texts = {name: event[name] for name in ("thought", "response", "observation", "error")}
    return Step(index=event["index"], call=call, **texts)
