"""Plan of a collection: its tasks and the number of rollouts of each, the same in every attempt."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from engine.config.run import EvaluateRun, RolloutRun
from engine.errors import ConfigError, Problem
from engine.events.spool import SPOOL_NAME
from engine.files import atomic_write
from engine.orchestrator.collection.ledger import Ledger
from engine.orchestrator.context import RunContext
from engine.orchestrator.selection import selected_rows
from engine.rollout.scheduler import GroupRequest
from engine.types import TaskRow

PLAN_NAME = "collection.json"
"""File in the run folder: task id → number of rollouts, where results of earlier runs leave fewer."""


def planned_groups(config: RolloutRun | EvaluateRun, run: RunContext, phase: str) -> list[GroupRequest]:
    """Return one request for each task that is left to sample, in order.

    Raises:
        ConfigError: ``collection.start_index`` is beyond the last task, or an earlier run is not here.
        DatasetError: nothing is left, or a task that an earlier attempt chose is gone.
    """
    rows = _sliced(selected_rows(config, run), config)
    sizes = _sizes(config, run, rows)
    return [
        GroupRequest(row=row, iteration=0, phase=phase, size=size)
        for row in rows
        if (size := sizes.get(row.task.id, config.rollout.group_size))
    ]


def _sliced(rows: Sequence[TaskRow], config: RolloutRun | EvaluateRun) -> Sequence[TaskRow]:
    first = config.collection.start_index
    if first >= len(rows):
        raise ConfigError(
            Problem(f"{first} is beyond the last of {len(rows)} tasks", "collection.start_index")
        )
    if config.collection.shuffle:
        rows = random.Random(config.seed).sample(rows, len(rows))
    return rows[first:][: config.dataset.limit]


def _sizes(config: RolloutRun | EvaluateRun, run: RunContext, rows: Sequence[TaskRow]) -> dict[str, int]:
    """Return the number of rollouts by task where earlier runs count; the first attempt decides it."""
    if config.collection.skip == "none":
        return {}
    path = run.run_dir / PLAN_NAME
    if path.exists():
        known: dict[str, int] = json.loads(path.read_text())
        return known
    sizes = {row.task.id: config.rollout.group_size for row in rows}
    for name in config.collection.skip_runs:
        spool = run.home / "runs" / name / SPOOL_NAME
        if not spool.exists():
            raise ConfigError(Problem(f"there is no run '{name}' with events", "collection.skip_runs"))
        for task_id, task in Ledger.read(spool).metrics.tally.tasks.items():
            if task_id in sizes and config.collection.skip == "finished":
                sizes[task_id] = max(sizes[task_id] - task.graded, 0)
            elif task_id in sizes and task.solved:
                sizes[task_id] = 0
    atomic_write(path, json.dumps(sizes), durable=True)
    return sizes
