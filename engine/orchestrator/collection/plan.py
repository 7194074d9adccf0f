"""Plan of a collection: its tasks and the number of rollouts of each, the same in every attempt."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from engine.config.run import EvaluateRun, RolloutRun
from engine.errors import ConfigError, Problem
from engine.files import atomic_write
from engine.orchestrator.collection.earlier import EarlierSamples
from engine.orchestrator.context import RunContext
from engine.orchestrator.tasks.selection import selected_rows
from engine.rollout.scheduler import GroupRequest
from engine.types import TaskRow

PLAN_NAME = "collection.json"
"""File in the run folder with ``collection.skip``: task id → first index and number of rollouts."""


def planned_groups(config: RolloutRun | EvaluateRun, run: RunContext, phase: str) -> list[GroupRequest]:
    """Return one request per task with rollouts to sample, in order.

    Raises:
        ConfigError: a task of ``collection.tasks`` does not exist, ``collection.start_index`` is beyond the
            last task, or an earlier run does not exist.
        DatasetError: no task is selected, or one that an earlier attempt selected is missing.
    """
    rows = _sliced(selected_rows(config, run), config)
    planned = _planned(config, run, rows, phase)
    everything = (0, config.rollout.group_size)
    requests = [(row, *planned.get(row.task.id, everything)) for row in rows]
    return [
        GroupRequest(row=row, iteration=0, phase=phase, first=first, size=size)
        for row, first, size in requests
        if size
    ]


def _sliced(rows: Sequence[TaskRow], config: RolloutRun | EvaluateRun) -> Sequence[TaskRow]:
    if chosen := set(config.collection.tasks):
        rows = [row for row in rows if chosen & {row.task.id, row.task.instance_id}]
        missing = chosen - {name for row in rows for name in (row.task.id, row.task.instance_id)}
        if missing:
            raise ConfigError(Problem(f"the split has no selected task {min(missing)}", "collection.tasks"))
    first = config.collection.start_index
    if first >= len(rows):
        raise ConfigError(
            Problem(f"{first} is beyond the last of {len(rows)} tasks", "collection.start_index")
        )
    if config.collection.shuffle:
        rows = random.Random(config.seed).sample(rows, len(rows))
    return rows[first:][: config.dataset.limit]


def _planned(
    config: RolloutRun | EvaluateRun, run: RunContext, rows: Sequence[TaskRow], phase: str
) -> dict[str, tuple[int, int]]:
    """Return the first index and number of rollouts of each task, given the samples of earlier runs.

    The first attempt stores them. Indices sampled by runs with the same seed are skipped: they would repeat
    the same samples.
    """
    skip = config.collection.skip
    if skip == "none":
        return {}
    path = run.run_dir / PLAN_NAME
    if path.exists():
        return {task_id: (first, size) for task_id, (first, size) in json.loads(path.read_text()).items()}
    earlier = EarlierSamples()
    for name in config.collection.skip_runs:
        earlier.add(run.home / "runs" / name)
    planned = {}
    for task_id in (row.task.id for row in rows):
        size = config.rollout.group_size
        if skip == "finished":
            size = max(size - earlier.count(task_id), 0)
        elif task_id in earlier.solved:
            size = 0
        planned[task_id] = earlier.next_index(task_id, seed=config.seed, iteration=0, phase=phase), size
    atomic_write(path, json.dumps(planned), durable=True)
    return planned
