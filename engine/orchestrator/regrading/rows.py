"""Rows under which the patches of earlier runs are graded again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from engine.datasets import replaced
from engine.datasets.health import row_content
from engine.datasets.replaced import RowIdentity
from engine.datasets.store import dataset_path, load_dataset
from engine.errors import DatasetError
from engine.events.regrading import Obstacle
from engine.grading.gradable import check_gradable
from engine.orchestrator.verification.stored_trajectories import StoredTrajectories
from engine.types import GradeRule, TaskRow

log = structlog.get_logger("orchestrator")


@dataclass(frozen=True, slots=True, kw_only=True)
class GradableRow:
    """A row that grades patches, with its dataset and the hash of its content."""

    row: TaskRow
    dataset: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Reason why the patches of a task cannot be graded again."""

    obstacle: Obstacle
    detail: str


class DatasetRows:
    """Current rows of datasets, and identities of replaced ones; each dataset is read once.

    Args:
        home: the data folder.
        own_box: whether tasks that ask for it are graded in the agent's sandbox.
    """

    def __init__(self, home: Path, *, own_box: bool) -> None:
        self._home = home
        self._own_box = own_box
        self._rows: dict[str, tuple[TaskRow, ...]] = {}
        self._findings: dict[tuple[str, str], GradableRow | Refusal] = {}

    def rows(self, dataset: str) -> tuple[TaskRow, ...]:
        """Return the rows of a dataset. Raises DatasetError."""
        if dataset not in self._rows:
            self._rows[dataset] = load_dataset(self._home, dataset).rows
        return self._rows[dataset]

    def replaced(self, dataset: str) -> Mapping[str, RowIdentity]:
        """Return the rows that later versions of a dataset replaced, by id."""
        return replaced.read(dataset_path(self._home, dataset))

    def finding(self, dataset: str, row: TaskRow) -> GradableRow | Refusal:
        """Return the row with its content, or the reason why it cannot grade patches."""
        key = dataset, row.task.id
        if key not in self._findings:
            self._findings[key] = self._checked(dataset, row)
        return self._findings[key]

    def _checked(self, dataset: str, row: TaskRow) -> GradableRow | Refusal:
        if row.answer.grade_rule == GradeRule.GOAL:
            return Refusal(obstacle=Obstacle.ENVIRONMENT, detail="its environment decides about the goal")
        if self._own_box and row.answer.own_box:
            detail = "its tests check the agent's sandbox; grading.own_box=false grades its patch alone"
            return Refusal(obstacle=Obstacle.OWN_SANDBOX, detail=detail)
        if reason := row.answer.metadata.get("ungradable"):
            return Refusal(obstacle=Obstacle.UNGRADABLE, detail=str(reason))
        try:
            check_gradable(row)
        except DatasetError as error:
            return Refusal(obstacle=Obstacle.UNGRADABLE, detail=str(error))
        return GradableRow(row=row, dataset=dataset, content=row_content(row))


class RowsOfRun:
    """Rows for the trajectories of one run.

    A trajectory belongs to the row with its task's id, else to the row with its task's instance id. In the
    second case both rows must start from equal files.

    Args:
        source: the run.
        datasets: reads the datasets.
        dataset: dataset with the rows to grade by; empty uses the run's own datasets.

    Raises:
        DatasetError: ``dataset`` cannot be read.
    """

    def __init__(self, source: StoredTrajectories, datasets: DatasetRows, *, dataset: str) -> None:
        self._source = source
        self._datasets = datasets
        self._names = (dataset,) if dataset else tuple(source.datasets)
        self._old: dict[str, RowIdentity] = {}
        """Rows on which the run's tasks may have been based, by id."""
        self._by_id: dict[str, tuple[str, TaskRow]] = {}
        self._by_instance: dict[str, tuple[str, TaskRow]] = {}
        if dataset:
            self._add(dataset)
        for name in source.datasets:
            self._old |= datasets.replaced(name)
            try:
                self._old |= {row.task.id: RowIdentity.of(row) for row in datasets.rows(name)}
                if not dataset:
                    self._add(name)
            except DatasetError as error:
                log.warning("dataset_not_read", run=source.name, dataset=name, error=str(error))

    def _add(self, name: str) -> None:
        for row in self._datasets.rows(name):
            self._by_id.setdefault(row.task.id, (name, row))
            self._by_instance.setdefault(row.task.instance_id, (name, row))

    def find(self, task_id: str) -> GradableRow | Refusal:
        """Return the row for trajectories of a task, or the reason why they cannot be graded again."""
        match self._source.environment:
            case "swe":
                pass
            case "reproduction":
                detail = "its patch consists of tests that an agent wrote"
                return Refusal(obstacle=Obstacle.WRITTEN_TESTS, detail=detail)
            case environment:
                detail = f"environment '{environment}' decided about the goal"
                return Refusal(obstacle=Obstacle.ENVIRONMENT, detail=detail)
        known = self._by_id.get(task_id) or self._continued(task_id)
        return known if isinstance(known, Refusal) else self._datasets.finding(*known)

    def _continued(self, task_id: str) -> tuple[str, TaskRow] | Refusal:
        """Return the row that continues a replaced one."""
        old = self._old.get(task_id)
        known = self._by_instance.get(old.instance_id) if old is not None else None
        if old is None or known is None:
            where = _listed(self._names)
            name = f"{task_id} ({old.instance_id})" if old is not None else task_id
            return Refusal(obstacle=Obstacle.NO_ROW, detail=f"no row of {where} continues task {name}")
        if RowIdentity.of(known[1]).tree != old.tree:
            detail = (
                f"{old.instance_id} of '{known[0]}' starts from another image, commit or setup patch than "
                f"task {task_id}"
            )
            return Refusal(obstacle=Obstacle.OTHER_TREE, detail=detail)
        return known


def _listed(names: Iterable[str]) -> str:
    return " or ".join(f"'{name}'" for name in names) or "the run's datasets, of which it names none,"
