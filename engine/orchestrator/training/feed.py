"""Collection of a training run's groups, in every schedule.

``RolloutFeed`` keeps as many groups in flight as its ``GroupBuffer`` and the scheduler's places allow, also
during updates, and returns the batches that the buffer chooses. Every admission and every batch is an event
before it has an effect, so that a killed run goes on, or is repeated, from its spool (``record``).

With schedule ``sync`` the bound of staleness is 0. Groups are then in flight during ``next_batch`` only, and
their order needs no events: it is a function of the seed and of the checkpoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Protocol, Self

from engine.config.algorithm import AlgorithmConfig
from engine.config.run import TrainRun
from engine.config.training import ScheduleConfig
from engine.events.schedule import BatchSelected, GroupAdmitted, SelectedGroup
from engine.events.sink import EventSink
from engine.orchestrator.context import CANCEL_S
from engine.orchestrator.training.buffer import BufferedGroup, GroupBuffer
from engine.orchestrator.training.curriculum import TaskCursor
from engine.orchestrator.training.record import GroupKey, TrainingRecord
from engine.orchestrator.training.resampling import Collection
from engine.orchestrator.training.stragglers import cancel, gather_siblings
from engine.orchestrator.watch.event_observer import TRAIN_PHASE
from engine.rollout.scheduler import GroupRequest, RolloutRequest
from engine.types import Group, Trajectory


class Roller(Protocol):
    """The part of ``RolloutScheduler`` that a feed uses."""

    async def roll_out(self, request: RolloutRequest) -> Trajectory:
        """Roll out and grade one request as soon as there is room."""

    async def wait_for_room(self) -> None:
        """Wait until a rollout could begin at once."""

    def begun_anew(self) -> AbstractContextManager[None]:
        """Return a context in which all rollouts are interrupted, to begin anew after it."""


class RolloutFeed:
    """Source of a training run's batches.

    Args:
        config: the schedule.
        algorithm: definition of a learning signal, and what becomes of groups without.
        scheduler: rolls out.
        cursor: order of the tasks; its ``take`` returns those of one iteration.
        record: what earlier attempts have.
        sink: receives admissions and batches; None records neither.
        iterations: of the whole run; no group is admitted that none of them trains on.
        batch: groups of an iteration.
        group_size: rollouts of a group.
        replays: whether rollouts that were in flight go on from their recorded steps.
    """

    def __init__(
        self,
        config: ScheduleConfig,
        algorithm: AlgorithmConfig,
        scheduler: Roller,
        cursor: TaskCursor,
        record: TrainingRecord,
        sink: EventSink | None,
        *,
        iterations: int,
        batch: int,
        group_size: int,
        replays: bool = False,
    ) -> None:
        self._config = config
        self._is_sync = config.mode == "sync"
        self._scheduler = scheduler
        self._record = record
        self._sink = sink
        self._group_size = group_size
        self._replays = replays
        self.buffer = GroupBuffer(config, algorithm, cursor, record, iterations=iterations, batch=batch)
        """Groups that are in no batch yet; its state belongs into checkpoints."""
        self._has_news = asyncio.Event()
        """Set when a group is complete or admitted, or the feed has failed."""
        self._may_admit = asyncio.Event()
        """Set when there may be room for a group, or one to be replaced."""
        self._is_held = False
        self._admitting: asyncio.Task[None] | None = None
        self._failure: Exception | None = None

    @classmethod
    def of(
        cls,
        config: TrainRun,
        scheduler: Roller,
        cursor: TaskCursor,
        record: TrainingRecord,
        sink: EventSink,
    ) -> Self:
        """Return the feed of a configuration."""
        return cls(
            config.schedule,
            config.algorithm,
            scheduler,
            cursor,
            record,
            None if config.schedule.mode == "sync" else sink,
            iterations=config.trainer.iterations,
            batch=config.trainer.tasks_per_iteration,
            group_size=config.rollout.group_size,
            replays=config.rollout.resume_in_flight == "replay",
        )

    # --- the trainer's side ------------------------------------------------------------------------

    async def next_batch(self, *, policy_version: int) -> Collection:
        """Return the groups of the next update as soon as they are complete, and those left out of it.

        A batch that an earlier attempt has recorded is read from the spool; nothing is rolled out yet.

        Raises:
            Exception: whatever ended a rollout and must end the run.
            TrainyardError: the record is damaged.
        """
        iteration = self.buffer.updates
        if (recorded := self._record.batches.get(iteration)) is not None:
            return await self._recorded(recorded)
        await self._start(policy_version)
        while (batch := self.buffer.choose()) is None:
            await self._news()
        self._is_held = self._is_sync
        self._may_admit.set()
        if self._sink is not None:
            self._sink.emit(
                BatchSelected,
                iteration=iteration,
                policy_version=policy_version,
                groups=_selected(batch.trained),
                discarded=_selected(batch.discarded),
            )
        return Collection(
            trained=_groups(batch.trained), discarded=_groups(batch.discarded), rounds=batch.rounds
        )

    @contextmanager
    def new_weights(self) -> Iterator[None]:
        """Publish new weights in the body; unfinished rollouts are treated as configured."""
        restart = self._config.on_update == "restart"
        with self._scheduler.begun_anew() if restart else nullcontext():
            yield

    def updated(self) -> None:
        """Count an update: there is room for another batch."""
        self.buffer.updates += 1
        self._may_admit.set()

    async def drain(self) -> None:
        """Admit no further group until the next ``next_batch``; wait for those in flight. Raises as it."""
        self._is_held = True
        while any(one.group is None and one.tasks for one in self.buffer.open.values()):
            await self._news()

    async def close(self) -> None:
        """Cancel what is in flight and wait until its sandboxes are closed."""
        tasks = [task for one in self.buffer.open.values() for task in one.tasks]
        if self._admitting is not None:
            tasks.append(self._admitting)
        cancel(tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_S)

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
        for key, one in self.buffer.replaced.items():
            kept = await asyncio.to_thread(self._record.kept, key, with_lost=True)
            self.buffer.complete(one, _group(self._request(key, one), kept.values()))
        for key, one in self.buffer.open.items():
            await self._begin(key, one, version=version)
        self._admitting = asyncio.create_task(self._watched(self._admit()))

    async def _admit(self) -> None:
        """Admit groups for ever, each as soon as staleness and places allow."""
        while True:
            if not self._is_sync:  # its groups queue up at once, which their waits for places count
                await asyncio.sleep(0)  # the siblings of the last group queue up for places
                await self._scheduler.wait_for_room()
            while self._is_held or (found := self.buffer.next_group()) is None:
                self._may_admit.clear()
                await self._may_admit.wait()
            updates = self.buffer.updates
            if self._sink is not None:
                self._sink.emit(
                    GroupAdmitted,
                    iteration=found.key.iteration,
                    task_id=found.key.task_id,
                    updates=updates,
                    replaces=found.replaces,
                )
            await self._begin(found.key, self.buffer.admit(found, updates))
            self._has_news.set()

    def _request(self, key: GroupKey, one: BufferedGroup) -> GroupRequest:
        return GroupRequest(row=one.row, iteration=key.iteration, phase=TRAIN_PHASE, size=self._group_size)

    async def _begin(self, key: GroupKey, one: BufferedGroup, *, version: int | None = None) -> None:
        """Roll out the siblings that are not finished yet, some from what the record has of them."""
        request, kept = self._request(key, one), {}
        if key in self._record:
            kept = await asyncio.to_thread(self._record.kept, key)
        unfinished = [rollout for rollout in request.rollouts() if rollout.key.index not in kept]
        if self._record.is_complete(key):
            unfinished = []
        if self._replays:
            turns = self._record.turns
            unfinished = [replace(each, recorded=turns(each.key, version=version)) for each in unfinished]
        rollouts = [asyncio.create_task(self._scheduler.roll_out(rollout)) for rollout in unfinished]
        complete = self._watched(self._complete(one, request, rollouts, kept))
        one.tasks = [*rollouts, asyncio.create_task(complete)]

    async def _complete(
        self,
        one: BufferedGroup,
        request: GroupRequest,
        rollouts: list[asyncio.Task[Trajectory]],
        kept: Mapping[int, Trajectory],
    ) -> None:
        finished = await gather_siblings(
            rollouts, list(kept.values()), enough=self._config.min_siblings, seconds=self._config.straggler_s
        )
        self.buffer.complete(one, _group(request, finished))
        self._may_admit.set()
        self._has_news.set()

    async def _recorded(self, selected: BatchSelected) -> Collection:
        """Return a recorded batch, whose groups leave the buffer."""
        found = self.buffer.recorded(selected)
        sides = []
        for chosen, left in ((selected.groups, found.trained), (selected.discarded, found.discarded)):
            read = await asyncio.to_thread(self._record.trajectories, chosen)
            requests = [self._request(key, one) for key, one in left.items()]
            sides.append([_group(*one) for one in zip(requests, read, strict=True)])
        return Collection(trained=sides[0], discarded=sides[1], rounds=found.rounds)

    async def _news(self) -> None:
        """Wait for another complete or admitted group. Raises whatever made the feed fail."""
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


def _group(request: GroupRequest, trajectories: Iterable[Trajectory]) -> Group:
    return Group(
        iteration=request.iteration,
        phase=request.phase,
        task=request.row.task,
        trajectories=tuple(sorted(trajectories, key=lambda trajectory: trajectory.key.index)),
    )


def _groups(found: Mapping[GroupKey, BufferedGroup]) -> list[Group]:
    return [one.group for one in found.values() if one.group is not None]


def _selected(found: Mapping[GroupKey, BufferedGroup]) -> list[SelectedGroup]:
    return [
        SelectedGroup(
            iteration=key.iteration,
            task_id=key.task_id,
            updates=one.updates,
            indices=[trajectory.key.index for trajectory in one.group.trajectories] if one.group else [],
        )
        for key, one in found.items()
    ]
