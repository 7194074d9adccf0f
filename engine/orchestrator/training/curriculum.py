"""Order of training tasks: seeded shuffled passes over the split.

Each task is in a pass once, or with ``curriculum.mode=solve_rate`` as drawn by ``task_weights``.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from engine.config.learning.training import CurriculumConfig
from engine.errors import ConfigError
from engine.orchestrator.training.task_weights import GroupOutcome, TaskWeights
from engine.types import TaskRow


class TaskCursor:
    """Position in an endless sequence of shuffled passes; its state is stored in checkpoints.

    An iteration never gets a task twice: where a pass ends inside an iteration, tasks the iteration
    already has wait for the next one.

    Args:
        rows: the training tasks, in the dataset's order.
        per_iteration: number of tasks of an iteration.
        seed: the run's seed; pass ``k`` is shuffled by ``(seed, k)``.
        curriculum: frequency of the tasks.
        lag: maximum staleness of the schedule.

    Raises:
        ConfigError: there are fewer tasks than an iteration uses.
    """

    def __init__(
        self,
        rows: Sequence[TaskRow],
        *,
        per_iteration: int,
        seed: int,
        curriculum: CurriculumConfig | None = None,
        lag: int = 0,
    ) -> None:
        if per_iteration > len(rows):
            raise ConfigError(
                f"trainer.tasks_per_iteration is {per_iteration}, but the split has only {len(rows)} tasks"
            )
        self._per_iteration = per_iteration
        self._rows = {row.task.id: row for row in rows}
        self._seed = seed
        self._passes = 0
        self._remaining: list[str] = []
        self._weights: TaskWeights | None = None
        if curriculum is not None and curriculum.mode == "solve_rate":
            self._weights = TaskWeights(self._rows, curriculum, seed=seed, lag=lag)

    @property
    def num_tasks(self) -> int:
        """Return the number of tasks of the split."""
        return len(self._rows)

    def observe(self, batch: int, outcomes: Iterable[GroupOutcome]) -> None:
        """Store the outcomes of a batch, by which later tasks are drawn."""
        if self._weights is not None:
            self._weights.observe(batch, outcomes)

    def metrics(self) -> dict[str, float]:
        """Return metrics of the curriculum; none where every task is drawn once per pass."""
        return {} if self._weights is None else self._weights.metrics()

    def take(self, count: int | None = None, *, exclude: Collection[str] = ()) -> list[TaskRow]:
        """Return the next tasks, as many as an iteration uses.

        Args:
            count: number of tasks to take instead; fewer are returned where the split has no more.
            exclude: tasks the iteration already has; they wait for the next one.
        """
        if count is None and self._weights is not None:
            self._weights.begin_iteration()
        had = set(exclude)
        wanted = min(self._per_iteration if count is None else count, len(self._rows) - len(had))
        taken: list[str] = []
        while len(taken) < wanted:
            task_id = next((task_id for task_id in self._remaining if task_id not in had), None)
            if task_id is None:
                self._remaining += self._next_pass()
                continue
            self._remaining.remove(task_id)
            taken.append(task_id)
            had.add(task_id)
        return [self._rows[task_id] for task_id in taken]

    def row(self, task_id: str) -> TaskRow:
        """Return a task of the split. Raises ConfigError when the split changed since."""
        self._check(task_id)
        return self._rows[task_id]

    def peek(self) -> list[TaskRow]:
        """Return the tasks that ``take`` would return, without moving the position."""
        state = self.state_dict()
        rows = self.take()
        self.load_state_dict(state)
        return rows

    def state_dict(self) -> dict[str, Any]:
        """Return the position as JSON."""
        weights = {} if self._weights is None else {"weights": self._weights.state_dict()}
        return {"passes": self._passes, "remaining": list(self._remaining), **weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved position. Raises ConfigError when the split changed since."""
        for task_id in state["remaining"]:
            self._check(task_id)
        self._passes = int(state["passes"])
        self._remaining = list(state["remaining"])
        if self._weights is not None:
            self._weights.load_state_dict(state["weights"])

    def _check(self, task_id: str) -> None:
        if task_id not in self._rows:
            raise ConfigError(f"task {task_id} of the checkpoint is no longer in the dataset's split")

    def _next_pass(self) -> list[str]:
        order = list(self._rows) if self._weights is None else self._draw(self._weights)
        random.Random(f"{self._seed}:pass:{self._passes}").shuffle(order)
        self._passes += 1
        return order

    def _draw(self, weights: TaskWeights) -> list[str]:
        return weights.draw(self._passes, set(self._remaining))
