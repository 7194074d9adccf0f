"""Buffer of a feed's groups that are admitted and in no batch yet: admission, replacement, choice, state.

With ``algorithm.dynamic_sampling`` (DAPO, arXiv:2503.14476) a complete group without a learning signal is
replaced by one of another task, which its iteration has not tried. With schedule ``sync`` the groups of a
round are replaced once all of them are complete, for at most ``max_resampling_rounds`` rounds: the tasks do
not depend on the order in which rollouts end, and a resumed attempt samples the same ones. With other
schedules a group is replaced at once, and at most ``max_resampling_rounds`` · B between two batches. Beyond
that limit, or if the split has no other task, the group counts in a batch but is left out of the update.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from engine.algorithms.advantages import is_informative
from engine.config.learning.algorithm import AlgorithmConfig
from engine.config.learning.training import ScheduleConfig
from engine.errors import ConfigError
from engine.events.schedule import BatchSelected, SelectedGroup
from engine.orchestrator.training.curriculum import TaskCursor
from engine.orchestrator.training.record import Admission, GroupKey, TrainingRecord
from engine.orchestrator.training.schedule import OpenGroup, capacity, choose_batch
from engine.orchestrator.watch.metrics import is_infrastructure
from engine.types import Group, TaskRow


@dataclass(slots=True, eq=False)
class BufferedGroup:
    """A group that is admitted and in no batch yet."""

    row: TaskRow
    updates: int
    """Updates made before its admission."""
    group: Group | None = None
    """The group once it is complete."""
    is_uniform: bool = False
    """Whether it is complete without a learning signal, under dynamic sampling."""
    round_number: int = 0
    """Number of successive replacements before it; not in checkpoints, as only ``sync`` has rounds."""
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    """Its rollouts in flight, and the task that completes the group."""


class NextGroup(NamedTuple):
    """Group to admit next."""

    key: GroupKey
    row: TaskRow
    replaces: str | None
    """Task of the same iteration whose group it replaces."""


class Batch(NamedTuple):
    """Groups that left the buffer for an update."""

    trained: dict[GroupKey, BufferedGroup]
    discarded: dict[GroupKey, BufferedGroup]
    rounds: int
    """Rounds of replacements with ``sync``; else replaced groups divided by the batch size, rounded up."""


class GroupBuffer:
    """Groups between their admission and their batch; part of the checkpoint.

    Args:
        schedule: bound of staleness, and order of the batches.
        algorithm: definition of a learning signal, and number of groups that are replaced.
        cursor: order of the tasks; its ``take`` returns those of one iteration.
        record: record of earlier attempts.
        iterations: of the whole run; groups beyond the last one are not admitted.
        batch: groups of an iteration.
    """

    def __init__(
        self,
        schedule: ScheduleConfig,
        algorithm: AlgorithmConfig,
        cursor: TaskCursor,
        record: TrainingRecord,
        *,
        iterations: int,
        batch: int,
    ) -> None:
        self._schedule = schedule
        self._is_sync = schedule.mode == "sync"
        self._algorithm = algorithm
        self._cursor = cursor
        self._record = record
        self._total = iterations * batch
        self._batch = batch
        self.updates = 0
        self._admitted = 0
        self._replacements = 0
        """Number of admitted groups that replaced others."""
        self._tasks: dict[int, list[str]] = {}
        """Iteration → its tasks, replacements included."""
        self._taken = 0
        """Number of iterations whose tasks were taken from the cursor."""
        self._ahead: deque[tuple[GroupKey, TaskRow]] = deque()
        """Tasks that were taken from the cursor, and whose groups are not yet admitted."""
        self.open: dict[GroupKey, BufferedGroup] = {}
        self.replaced: dict[GroupKey, BufferedGroup] = {}
        """Groups that were replaced since the last batch."""

    def begin_at(self, iteration: int) -> None:
        """Continue after synchronous iterations, which leave no group in the buffer."""
        self.updates = self._taken = iteration
        self._admitted = iteration * self._batch

    def tasks(self, iteration: int) -> list[str]:
        """Return the tasks of an iteration, without replacements."""
        while self._taken <= iteration:
            self._take()
        admitted, original = self._record.admitted, Admission(0)
        return [
            task_id
            for task_id in self._tasks[iteration]
            if admitted.get(GroupKey(iteration, task_id), original).replaces is None
        ]

    # --- admission ---------------------------------------------------------------------------------

    def next_group(self) -> NextGroup | None:
        """Return the group to admit now, replacements first; None while there is no room."""
        for key, group in self.open.items():
            if self._is_replaceable(key, group):
                return self._in_place_of(key)
        wanted = capacity(
            admitted=self._admitted - self._replacements,
            updates=self.updates,
            batch=self._batch,
            staleness=self._schedule.staleness,
        )
        left = self._total - (self._admitted - self._replacements)
        return self._fresh() if min(wanted, left) > 0 else None

    def admit(self, found: NextGroup, updates: int) -> BufferedGroup:
        """Admit a group, and remove the one that it replaces."""
        self.open[found.key] = group = BufferedGroup(found.row, updates)
        if found.replaces is not None:
            key = GroupKey(found.key.iteration, found.replaces)
            self.replaced[key] = replaced = self.open.pop(key)
            self._replacements += 1
            group.round_number = replaced.round_number + 1
        self._record.admitted[found.key] = Admission(updates, found.replaces)
        self._admitted += 1
        return group

    def complete(self, one: BufferedGroup, group: Group) -> None:
        """Store a group whose rollouts are finished and graded."""
        one.tasks = []
        one.group = group
        one.is_uniform = self._algorithm.dynamic_sampling and not is_informative(
            group.trajectories, self._algorithm
        )

    # --- batches -----------------------------------------------------------------------------------

    def choose(self) -> Batch | None:
        """Remove and return the groups of the next update; None while it has to wait."""
        groups = [
            OpenGroup(
                admitted_at=group.updates,
                is_complete=group.group is not None and not self._is_replaceable(key, group),
                is_uniform=group.is_uniform,
            )
            for key, group in self.open.items()
        ]
        indices = choose_batch(
            groups,
            updates=self.updates,
            batch=self._batch,
            staleness=self._schedule.staleness,
            in_order=self._schedule.mode == "one_step_off",
        )
        if indices is None:
            return None
        keys = list(self.open)
        chosen = [keys[index] for index in indices]
        return self._remove(
            [key for key in chosen if not self.open[key].is_uniform],
            [*self.replaced, *(key for key in chosen if self.open[key].is_uniform)],
        )

    def recorded(self, batch: BatchSelected) -> Batch:
        """Remove and return the groups of a batch that an earlier attempt has chosen."""
        return self._remove(map(_key, batch.groups), map(_key, batch.discarded))

    # --- checkpoints -------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the admitted groups that are in no batch yet, as JSON."""
        return {
            "updates": self.updates,
            "admitted": self._admitted,
            "replacements": self._replacements,
            "taken": self._taken,
            "ahead": [[*key] for key, _ in self._ahead],
            "open": [[*key, group.updates] for key, group in self.open.items()],
            "replaced": [[*key, group.updates] for key, group in self.replaced.items()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint, also of an older version without replaced groups.

        Raises:
            ConfigError: the split changed since.
        """
        self.updates, self._admitted, self._taken = state["updates"], state["admitted"], state["taken"]
        self._replacements = state.get("replacements", 0)
        self._ahead.extend((GroupKey(*key), self._cursor.row(key[1])) for key in state["ahead"])
        for groups, saved in ((self.open, state["open"]), (self.replaced, state.get("replaced", []))):
            for iteration, task_id, updates in saved:
                key = GroupKey(iteration, task_id)
                groups[key] = BufferedGroup(self._cursor.row(task_id), updates)
                self._record.admitted.setdefault(key, Admission(updates))
        for key in (*list(self._record.admitted)[: self._admitted], *(key for key, _ in self._ahead)):
            self._tasks.setdefault(key.iteration, []).append(key.task_id)

    def follow_record(self) -> None:
        """Admit the groups that earlier attempts admitted since the checkpoint, before the first batch.

        Raises:
            ConfigError: the next tasks are not those that were admitted.
        """
        for batch in sorted(number for number in self._record.batches if number >= self.updates):
            self._cursor.observe(batch, self._record.outcomes(batch))
        for key, (updates, replaces) in list(self._record.admitted.items())[self._admitted :]:
            replaced = None if replaces is None else GroupKey(key.iteration, replaces)
            upcoming = self._fresh() if replaced is None else self._in_place_of(replaced)
            if upcoming.key != key:
                raise ConfigError(
                    f"the run's record admits task {key.task_id} for iteration {key.iteration}, but task "
                    f"{upcoming.key.task_id} is next: the dataset's split changed since; start the run again"
                )
            self.admit(upcoming, updates)

    # --- helpers -----------------------------------------------------------------------------------

    def _is_replaceable(self, key: GroupKey, one: BufferedGroup) -> bool:
        if not one.is_uniform or len(self._tasks[key.iteration]) == self._cursor.num_tasks:
            return False
        max_rounds = self._algorithm.max_resampling_rounds
        if not self._is_sync:
            return len(self.replaced) < max_rounds * self._batch
        peers = [
            other
            for other in (*self.open.values(), *self.replaced.values())
            if other.round_number == one.round_number
        ]
        groups = [other.group for other in peers if other.group is not None]
        if self._ahead or len(groups) < len(peers) or one.round_number == max_rounds:
            return False
        return one.round_number > 0 or not all(map(_is_lost, groups))

    def _in_place_of(self, key: GroupKey) -> NextGroup:
        tried = self._tasks[key.iteration]
        (row,) = self._cursor.take(1, exclude=tried)
        tried.append(row.task.id)
        return NextGroup(GroupKey(key.iteration, row.task.id), row, key.task_id)

    def _fresh(self) -> NextGroup:
        if not self._ahead:
            self._take()
        return NextGroup(*self._ahead.popleft(), None)

    def _take(self) -> None:
        """Take the tasks of another iteration."""
        rows = self._cursor.take()
        self._ahead.extend((GroupKey(self._taken, row.task.id), row) for row in rows)
        self._tasks[self._taken] = [row.task.id for row in rows]
        self._taken += 1

    def _remove(self, trained: Iterable[GroupKey], discarded: Iterable[GroupKey]) -> Batch:
        """Remove the groups of a batch, and count the rounds of replacements."""
        removed = {key: self.open.pop(key) for key in trained}
        count, dropped = 0, {}
        for key in discarded:
            if key in self.replaced:
                count += 1
                dropped[key] = self.replaced.pop(key)
            else:
                dropped[key] = self.open.pop(key)
        rounds = -(-count // self._batch)
        if self._is_sync:
            rounds = max(group.round_number for group in (*removed.values(), *dropped.values()))
        return Batch(removed, dropped, rounds)


def _key(group: SelectedGroup) -> GroupKey:
    return GroupKey(group.iteration, group.task_id)


def _is_lost(group: Group) -> bool:
    """Return whether infrastructure lost all rollouts of a group."""
    return all(map(is_infrastructure, group.trajectories))
