"""Continuous collection: groups are admitted and rolled out while the trainer updates.

``RolloutFeed`` keeps as many groups in flight as ``schedule.capacity`` and the scheduler's places allow, and
returns the batches that ``schedule.choose_batch`` chooses. Every admission and every batch is an event
before it has an effect, so that a killed run goes on, or is repeated, from its spool (``record``).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from engine.config.training import ScheduleConfig
from engine.errors import ConfigError
from engine.events.schedule import BatchSelected, GroupAdmitted, SelectedGroup
from engine.events.sink import EventSink
from engine.orchestrator.context import CANCEL_S
from engine.orchestrator.training.curriculum import TaskCursor
from engine.orchestrator.training.record import GroupKey, TrainingRecord
from engine.orchestrator.training.schedule import OpenGroup, capacity, choose_batch
from engine.orchestrator.training.stragglers import gather_siblings
from engine.orchestrator.watch.event_observer import TRAIN_PHASE
from engine.rollout.scheduler import GroupRequest, RolloutRequest
from engine.types import Group, TaskRow, Trajectory


class Roller(Protocol):
    """The part of ``RolloutScheduler`` that a feed uses."""

    async def roll_out(self, request: RolloutRequest) -> Trajectory:
        """Roll out and grade one request as soon as there is room."""

    async def wait_for_room(self) -> None:
        """Wait until a rollout could begin at once."""

    def begun_anew(self) -> AbstractContextManager[None]:
        """Return a context in which all rollouts are interrupted, to begin anew after it."""


@dataclass(slots=True, eq=False)
class _Open:
    """A group that is admitted and not yet trained on."""

    row: TaskRow
    updates: int
    """Updates made when it was admitted."""
    group: Group | None = None
    """The group once it is complete."""
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    """Its rollouts in flight, and the task that puts them together."""


class RolloutFeed:
    """Source of a training run's batches under a schedule other than ``sync``.

    Args:
        config: the schedule.
        scheduler: rolls out.
        cursor: order of the tasks; its ``take`` returns those of one iteration.
        record: what earlier attempts have.
        sink: receives admissions and batches.
        iterations: of the whole run; no group is admitted that none of them trains on.
        batch: groups of an iteration.
        group_size: rollouts of a group.
        replays: whether rollouts that were in flight go on from their recorded steps.
    """

    def __init__(
        self,
        config: ScheduleConfig,
        scheduler: Roller,
        cursor: TaskCursor,
        record: TrainingRecord,
        sink: EventSink,
        *,
        iterations: int,
        batch: int,
        group_size: int,
        replays: bool = False,
    ) -> None:
        self._config = config
        self._scheduler = scheduler
        self._cursor = cursor
        self._record = record
        self._sink = sink
        self._total = iterations * batch
        self._batch = batch
        self._group_size = group_size
        self._replays = replays
        self._updates = 0
        self._admitted = 0
        self._taken = 0
        """Iterations whose tasks were taken from the cursor."""
        self._ahead: deque[tuple[GroupKey, TaskRow]] = deque()
        """Tasks that were taken, and whose groups are not yet admitted."""
        self._open: dict[GroupKey, _Open] = {}
        self._has_news = asyncio.Event()
        """Set when a group is complete or the feed has failed."""
        self._may_admit = asyncio.Event()
        self._is_held = False
        self._admitting: asyncio.Task[None] | None = None
        self._failure: Exception | None = None

    # --- the trainer's side ------------------------------------------------------------------------

    def tasks(self, iteration: int) -> list[str]:
        """Return the tasks of an iteration, all of which are admitted now or later."""
        while self._taken <= iteration:
            self._take()
        admitted = (key for key in self._record.admitted if key.iteration == iteration)
        ahead = (key for key, _ in self._ahead if key.iteration == iteration)
        return [key.task_id for key in (*admitted, *ahead)]

    async def next_batch(self, *, policy_version: int) -> list[Group]:
        """Return the groups of the next update, as soon as they are complete.

        A batch that an earlier attempt has recorded is read from the spool; nothing is rolled out yet.

        Raises:
            Exception: whatever ended a rollout and must end the run.
            TrainyardError: the record is damaged.
        """
        if self._updates in self._record.batches:
            recorded = await asyncio.to_thread(self._record.batch, self._updates)
            return [self._recorded(*group) for group in recorded]
        await self._start(policy_version)
        while (chosen := self._choose()) is None:
            await self._news()
        batch = [(key, self._open.pop(key)) for key in chosen]
        groups = [one.group for _, one in batch if one.group is not None]
        self._sink.emit(
            BatchSelected,
            iteration=self._updates,
            policy_version=policy_version,
            groups=[
                SelectedGroup(
                    iteration=key.iteration,
                    task_id=key.task_id,
                    updates=one.updates,
                    indices=[trajectory.key.index for trajectory in group.trajectories],
                )
                for (key, one), group in zip(batch, groups, strict=True)
            ],
        )
        return groups

    @contextmanager
    def new_weights(self) -> Iterator[None]:
        """Publish new weights in the body; unfinished rollouts are treated as configured."""
        restart = self._config.on_update == "restart"
        with self._scheduler.begun_anew() if restart else nullcontext():
            yield

    def updated(self) -> None:
        """Count an update: there is room for another batch."""
        self._updates += 1
        self._may_admit.set()

    async def drain(self) -> None:
        """Admit no further group until the next ``next_batch``; wait for those in flight. Raises as it."""
        self._is_held = True
        while any(one.group is None and one.tasks for one in self._open.values()):
            await self._news()

    async def close(self) -> None:
        """Cancel what is in flight and wait until its sandboxes are closed."""
        tasks = [task for one in self._open.values() for task in one.tasks]
        if self._admitting is not None:
            tasks.append(self._admitting)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_S)

    # --- checkpoints -------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return what is admitted and not yet trained on, as JSON."""
        return {
            "updates": self._updates,
            "admitted": self._admitted,
            "taken": self._taken,
            "ahead": [[*key] for key, _ in self._ahead],
            "open": [[*key, one.updates] for key, one in self._open.items()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint. Raises ConfigError when the split changed since."""
        self._updates, self._admitted, self._taken = state["updates"], state["admitted"], state["taken"]
        self._ahead.extend((GroupKey(*key), self._cursor.row(key[1])) for key in state["ahead"])
        for iteration, task_id, updates in state["open"]:
            key = GroupKey(iteration, task_id)
            self._open[key] = _Open(self._cursor.row(task_id), updates)
            self._record.admitted.setdefault(key, updates)

    def follow_record(self) -> None:
        """Admit what earlier attempts admitted since the checkpoint; called before the first batch.

        Raises:
            ConfigError: the tasks are not those that were admitted.
        """
        for batch in sorted(one for one in self._record.batches if one >= self._updates):
            self._cursor.observe(batch, self._record.outcomes(batch))
        for key, updates in list(self._record.admitted.items())[self._admitted :]:
            expected, row = self._next()
            if expected != key:
                raise ConfigError(
                    f"the run's record admits task {key.task_id} for iteration {key.iteration}, but task "
                    f"{expected.task_id} is next: the dataset's split changed since; start the run again"
                )
            self._open[key] = _Open(row, updates)
            self._admitted += 1

    # --- admission ---------------------------------------------------------------------------------

    async def _start(self, policy_version: int) -> None:
        """Roll out the groups that are open already, then admit others.

        Where rollouts begin anew with new weights, none goes on from steps of others.
        """
        self._is_held = False
        self._may_admit.set()
        if self._admitting is not None:
            return
        version = policy_version if self._config.on_update == "restart" else None
        for key, one in self._open.items():
            kept = await asyncio.to_thread(self._record.kept, key)
            self._begin(key, one, kept, version=version, replays=self._replays)
        self._admitting = asyncio.create_task(self._watched(self._admit()))

    async def _admit(self) -> None:
        """Admit groups for ever, each as soon as staleness and places allow."""
        while True:
            await asyncio.sleep(0)  # the siblings of the last group queue up for places
            await self._scheduler.wait_for_room()
            while self._is_held or not self._capacity():
                self._may_admit.clear()
                await self._may_admit.wait()
            key, row = self._next()
            self._sink.emit(
                GroupAdmitted, iteration=key.iteration, task_id=key.task_id, updates=self._updates
            )
            self._record.admitted[key] = self._updates
            self._admitted += 1
            self._open[key] = one = _Open(row, self._updates)
            self._begin(key, one, {})

    def _capacity(self) -> int:
        wanted = capacity(
            admitted=self._admitted,
            updates=self._updates,
            batch=self._batch,
            staleness=self._config.staleness,
        )
        return min(wanted, self._total - self._admitted)

    def _choose(self) -> list[GroupKey] | None:
        """Return the next batch; None while it has to wait."""
        keys = list(self._open)
        groups = [
            OpenGroup(admitted_at=one.updates, is_complete=one.group is not None)
            for one in self._open.values()
        ]
        chosen = choose_batch(
            groups,
            updates=self._updates,
            batch=self._batch,
            staleness=self._config.staleness,
            in_order=self._config.mode == "one_step_off",
        )
        return None if chosen is None else [keys[place] for place in chosen]

    def _next(self) -> tuple[GroupKey, TaskRow]:
        if not self._ahead:
            self._take()
        return self._ahead.popleft()

    def _take(self) -> None:
        """Take the tasks of another iteration."""
        self._ahead.extend((GroupKey(self._taken, row.task.id), row) for row in self._cursor.take())
        self._taken += 1

    def _begin(
        self,
        key: GroupKey,
        one: _Open,
        kept: Mapping[int, Trajectory],
        *,
        version: int | None = None,
        replays: bool = False,
    ) -> None:
        """Roll out the siblings that are not finished yet, some from what the record has of them."""
        request = GroupRequest(row=one.row, iteration=key.iteration, phase=TRAIN_PHASE, size=self._group_size)
        unfinished = [rollout for rollout in request.rollouts() if rollout.key.index not in kept]
        if self._record.is_complete(key):
            unfinished = []
        if replays:
            turns = self._record.turns
            unfinished = [replace(each, recorded=turns(each.key, version=version)) for each in unfinished]
        rollouts = [asyncio.create_task(self._scheduler.roll_out(rollout)) for rollout in unfinished]
        complete = self._watched(self._complete(one, request, rollouts, kept))
        one.tasks = [*rollouts, asyncio.create_task(complete)]

    async def _complete(
        self,
        one: _Open,
        request: GroupRequest,
        rollouts: list[asyncio.Task[Trajectory]],
        kept: Mapping[int, Trajectory],
    ) -> None:
        finished = await gather_siblings(
            rollouts, list(kept.values()), enough=self._config.min_siblings, seconds=self._config.straggler_s
        )
        one.tasks = []
        one.group = Group(
            iteration=request.iteration,
            phase=request.phase,
            task=request.row.task,
            trajectories=tuple(finished),
        )
        self._has_news.set()

    def _recorded(self, selected: SelectedGroup, trajectories: tuple[Trajectory, ...]) -> Group:
        """Return a group of a recorded batch, which is no longer open."""
        key = GroupKey(selected.iteration, selected.task_id)
        one = self._open.pop(key)
        return Group(iteration=key.iteration, phase=TRAIN_PHASE, task=one.row.task, trajectories=trajectories)

    async def _news(self) -> None:
        """Wait for another complete group. Raises whatever made the feed fail."""
        if self._failure is None:
            await self._has_news.wait()
            self._has_news.clear()
        if self._failure is not None:
            raise self._failure

    async def _watched(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            self._failure = self._failure or error
            self._has_news.set()
