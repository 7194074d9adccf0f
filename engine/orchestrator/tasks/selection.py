"""Selection of a split's tasks for a run: made once, the same in every attempt.

Quarantine and solve rates change while runs continue. The first attempt's selection is stored in the run's
folder, so that a resumed attempt finds the tasks of its checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

import structlog

from engine.config.rollout import DatasetConfig
from engine.config.run import ImproveRun, TrainRun
from engine.datasets.health import Selection, select
from engine.datasets.store import dataset_path
from engine.errors import DatasetError
from engine.events.types import TasksSelected
from engine.files import atomic_write
from engine.orchestrator.context import RunContext
from engine.orchestrator.setup import ActingRun, load_rows
from engine.sandbox.registries import check_registries
from engine.types import TaskRow

SELECTION_NAME = "selection.json"
"""File in the run folder: purpose → ids of the selected tasks, in order."""

Purpose = Literal["tasks", "evaluation"]
log = structlog.get_logger("orchestrator")


def run_rows(config: ActingRun, run: RunContext) -> Sequence[TaskRow]:
    """Return the tasks to train on or to sample: at most ``dataset.limit`` of those that ``dataset`` selects.

    Raises:
        DatasetError: no task is selected, or one that an earlier attempt selected is missing.
    """
    return selected_rows(config, run)[: config.dataset.limit]


def selected_rows(config: ActingRun, run: RunContext) -> Sequence[TaskRow]:
    """Return all tasks that ``dataset`` selects, without its limit.

    Raises:
        DatasetError: as ``run_rows``.
        PreflightError: an image may not be pulled.
    """
    rows = load_rows(config, run.home, config.dataset.name, config.dataset.split)
    selected = _selected(config.dataset, run, rows, "tasks")
    check_registries((row.task.image for row in selected), config.sandbox)
    return selected


def evaluation_rows(config: TrainRun | ImproveRun, run: RunContext) -> Sequence[TaskRow]:
    """Return the held-out tasks except quarantined ones, whatever their solve rates and test strength.

    Raises DatasetError.
    """
    chosen = config.dataset.model_copy(
        update={
            "name": config.evaluation.dataset or config.dataset.name,
            "split": config.evaluation.split,
            "solve_rate_min": None,
            "solve_rate_max": None,
            "min_strength": None,
        }
    )
    rows = load_rows(config, run.home, chosen.name, chosen.split)
    selected = _selected(chosen, run, rows, "evaluation")
    check_registries((row.task.image for row in selected), config.sandbox)
    return selected


def _selected(
    config: DatasetConfig, run: RunContext, rows: Sequence[TaskRow], purpose: Purpose
) -> Sequence[TaskRow]:
    path = run.run_dir / SELECTION_NAME
    known: dict[str, list[str]] = json.loads(path.read_text()) if path.exists() else {}
    if purpose in known:
        return _chosen_before(rows, known[purpose], config.split)
    selection = select(rows, config, dataset_path(run.home, config.name))
    _report(run, config, selection)
    known[purpose] = [row.task.id for row in selection.rows]
    atomic_write(path, json.dumps(known), durable=True)
    return selection.rows


def _chosen_before(rows: Sequence[TaskRow], ids: Sequence[str], split: str) -> Sequence[TaskRow]:
    by_id = {row.task.id: row for row in rows}
    gone = [task_id for task_id in ids if task_id not in by_id]
    if gone:
        raise DatasetError(f"task {gone[0]}, which this run works on, is no longer in the split '{split}'")
    return tuple(by_id[task_id] for task_id in ids)


def _report(run: RunContext, config: DatasetConfig, selection: Selection) -> None:
    counts = {
        "num_tasks": selection.num_tasks,
        "num_selected": len(selection.rows),
        "num_quarantined": selection.num_quarantined,
        "num_outside": selection.num_outside,
        "num_weak": selection.num_weak,
        "num_unmeasured": selection.num_unmeasured,
    }
    log.info("tasks_selected", dataset=config.name, split=config.split, **counts)
    run.sink.emit(TasksSelected, dataset=config.name, split=config.split, **counts)
