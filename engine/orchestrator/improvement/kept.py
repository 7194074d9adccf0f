"""Rollouts that a round of self-improvement keeps, read from the run's own spool.

A first pass finds the candidates; after the selection, a second pass assembles the trajectories.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.config.learning.improvement import ImprovementConfig
from engine.events.delivery.spool import SpoolLine, read_lines
from engine.events.selection import Selected, select
from engine.events.stored_trajectories import StoredStep, StoredTrajectory
from engine.events.types import StepFinished, TrajectoryFinished
from engine.orchestrator.collection.ledger import type_of
from engine.orchestrator.watch.event_observer import TRAIN_PHASE
from engine.patches.sections import submission_hash
from engine.rollout.summary import RolloutSummary
from engine.types import RolloutKey, TaskRow, Verdict

_CHECK_EVERY = 200
"""Lines of the spool between two checks of whether the attempt must end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """Passed rollout as a candidate of the selection (``engine.events.selection.Candidate``)."""

    key: RolloutKey
    end: int
    """End offset of its terminal record in the spool."""
    patch_hash: str
    generated_tokens: int
    num_steps: int

    @property
    def id(self) -> str:
        """Return the rollout's identity within the run."""
        return f"{self.key.iteration}/{self.key.task_id}/{self.key.index}"

    @property
    def task_key(self) -> str:
        """Return the rollout's task."""
        return self.key.task_id


def choose_kept(
    spool: Path, config: ImprovementConfig, *, number: int, seed: int, check: Callable[[], None]
) -> Selected[Passed]:
    """Return the rollouts that a round keeps.

    Args:
        spool: the run's spool.
        config: rule of the selection.
        number: the round, from 0; its rollouts are finished.
        seed: the run's seed.
        check: called repeatedly; its exceptions end the pass.
    """
    first = number if config.learn_from == "last" else 0
    lines = _checked(read_lines(spool), check)
    return select(_passed(lines, range(first, number + 1), config.terminations), config, seed=seed)


def _checked(lines: Iterable[SpoolLine], check: Callable[[], None]) -> Iterator[SpoolLine]:
    for number, line in enumerate(lines):
        if number % _CHECK_EVERY == 0:
            check()
        yield line


def _passed(lines: Iterable[SpoolLine], rounds: range, terminations: Collection[str]) -> Iterator[Passed]:
    seen: set[RolloutKey] = set()
    for line in lines:
        if type_of(line.data) != "trajectory_finished":
            continue
        rollout = RolloutSummary.from_event(line.data)
        key = rollout.key
        if key.phase != TRAIN_PHASE or key.iteration not in rounds or rollout.is_lost or key in seen:
            continue
        seen.add(key)
        if not rollout.is_solved or (terminations and rollout.termination not in terminations):
            continue
        patch = json.loads(line.data)["patch"]
        yield Passed(
            key=key,
            end=line.end,
            patch_hash=submission_hash(patch),
            generated_tokens=rollout.generated_tokens,
            num_steps=rollout.num_steps,
        )


def read_kept(
    spool: Path,
    kept: Iterable[Passed],
    rows: Mapping[str, TaskRow],
    *,
    run_id: str,
    model: str,
    check: Callable[[], None],
) -> Iterator[StoredTrajectory]:
    """Yield the kept rollouts in full, in the order in which they finished.

    Args:
        spool: the run's spool.
        kept: what ``choose_kept`` returned.
        rows: the run's tasks by id.
        run_id: the run.
        model: first policy of the run.
        check: called repeatedly; its exceptions end the pass.
    """
    wanted = {rollout.end: rollout.key for rollout in kept}
    keys = set(wanted.values())
    steps: dict[RolloutKey, list[StoredStep]] = {}
    for line in _checked(read_lines(spool), check):
        match type_of(line.data):
            case "trajectory_started":
                steps.pop(_key_of(line.data), None)
            case "step_finished" if (key := _key_of(line.data)) in keys:
                step = StepFinished.model_validate_json(line.data)
                fields = {name: getattr(step, name) for name in StoredStep.model_fields}
                steps.setdefault(key, []).append(StoredStep(**fields))
            case "trajectory_finished" if line.end in wanted:
                key = wanted[line.end]
                event = TrajectoryFinished.model_validate_json(line.data)
                yield _stored(event, steps.pop(key, []), rows[key.task_id], line.end, run_id, model)


def _key_of(line: bytes) -> RolloutKey:
    return RolloutKey(**json.loads(line)["ref"])


def _stored(
    event: TrajectoryFinished, steps: list[StoredStep], row: TaskRow, number: int, run_id: str, model: str
) -> StoredTrajectory:
    task = row.task
    return StoredTrajectory(
        id=number,
        run=int(run_id) if run_id.isdecimal() else 0,
        model=model,
        task_id=task.id,
        instance_id=task.instance_id,
        problem_statement=task.problem_statement,
        workdir=task.workdir,
        metadata=dict(task.metadata),
        verdict=Verdict.PASSED,
        reward=event.reward,
        termination=event.termination,
        patch=event.patch,
        steps=steps,
        tokens=event.tokens,
    )
