"""Collection of a training run's groups, in every schedule.

``RolloutFeed`` keeps as many groups in flight as its ``GroupBuffer`` and the scheduler's places permit, also
during updates, and returns the batches that the buffer chooses. Every admission and every batch is recorded
before it takes effect, so that a killed run can continue, or be repeated, from its spool (``record``).

With schedule ``sync`` the bound of staleness is 0. Groups are then in flight during ``next_batch`` only, and
their order needs no events: it is a function of the seed and of the checkpoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Protocol, Self

from engine.config.learning.algorithm import AlgorithmConfig
from engine.config.learning.training import ScheduleConfig
from engine.config.run import TrainRun
from engine.events.delivery.sink import EventSink
from engine.events.schedule import BatchSelected, GroupAdmitted, SelectedGroup
from engine.orchestrator.context import CANCEL_S
from engine.orchestrator.training.buffer import BufferedGroup, GroupBuffer
from engine.orchestrator.training.curriculum import TaskCursor
from engine.orchestrator.training.record import GroupKey, TrainingRecord
from engine.orchestrator.training.resampling import Collection
from engine.orchestrator.training.stragglers import cancel, gather_siblings
from engine.orchestrator.watch.event_observer import TRAIN_PHASE
from engine.rollout.scheduler import GroupRequest, RolloutRequest
from engine.types import Group, Trajectory


class RolloutSource(Protocol):
    """The part of ``RolloutScheduler`` that a feed uses."""

    async def roll_out(self, request: RolloutRequest) -> Trajectory:
        """Roll out and grade one request as soon as there is room."""

    async def wait_for_room(self) -> None:
        """Wait until a rollout could begin at once."""

    def restarted(self) -> AbstractContextManager[None]:
        """Return a context that interrupts all rollouts and restarts them at its end."""


class RolloutFeed:
    """Source of a training run's batches.

    Args:
        config: the schedule.
        algorithm: definition of a learning signal, and replacement of groups without one.
        scheduler: scheduler of the rollouts.
        cursor: order of the tasks; its ``take`` returns those of one iteration.
        record: record of earlier attempts.
        sink: receives admissions and batches; None records neither.
        iterations: of the whole run; groups beyond the last one are not admitted.
        batch: groups of an iteration.
        group_size: rollouts of a group.
        replays: whether rollouts that were in flight continue from their recorded steps.
    """

    def __init__(
        self,
        config: ScheduleConfig,
        algorithm: AlgorithmConfig,
        scheduler: RolloutSource,
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
        """Groups that are in no batch yet; its state is stored in checkpoints."""
        self._has_news = asyncio.Event()
        """Set when a group is complete or admitted, or the feed has failed."""
        self._may_admit = asyncio.Event()
        """Set when there may be room for a group, or a group to replace."""
        self._is_held = False
        self._admitting: asyncio.Task[None] | None = None
        self._failure: Exception | None = None

    @classmethod
    def of(
        cls,
        config: TrainRun,
        scheduler: RolloutSource,
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
            Exception: an error of a rollout that must end the run.
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
        """Return a context for publishing weights; ``on_update`` decides whether rollouts restart."""
        restart = self._config.on_update == "restart"
        with self._scheduler.restarted() if restart else nullcontext():
            yield

    def updated(self) -> None:
        """Count an update, which makes room for another batch."""
        self.buffer.updates += 1
        self._may_admit.set()

    async def drain(self) -> None:
        """Stop admission until the next ``next_batch``, and wait for groups in flight. Raises its errors."""
        self._is_held = True
        while any(group.group is None and group.tasks for group in self.buffer.open.values()):
            await self._news()

    async def close(self) -> None:
        """Cancel all rollouts and wait until their sandboxes are closed."""
        tasks = [task for group in self.buffer.open.values() for task in group.tasks]
        if self._admitting is not None:
            tasks.append(self._admitting)
        cancel(tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_S)

    # --- admission ---------------------------------------------------------------------------------

    async def _start(self, policy_version: int) -> None:
        """Roll out the open groups, then admit others.

        If new weights restart rollouts, recorded steps of other weights are not continued.
        """
        self._is_held = False
        self._may_admit.set()
        if self._admitting is not None:
            return
        version = policy_version if self._config.on_update == "restart" else None
        for key, group in self.buffer.replaced.items():
            kept = await asyncio.to_thread(self._record.kept, key, with_lost=True)
            self.buffer.complete(group, _group(self._request(key, group), kept.values()))
        for key, group in self.buffer.open.items():
            await self._begin(key, group, version=version)
        self._admitting = asyncio.create_task(self._watched(self._admit()))

    async def _admit(self) -> None:
        """Admit groups in an endless loop, each as soon as staleness and places permit."""
        while True:
            if not self._is_sync:  # sync groups queue at once, and their wait times include that
                await asyncio.sleep(0)  # lets the siblings of the last group queue for places
                await self._scheduler.wait_for_room()
            while self._is_held or (upcoming := self.buffer.next_group()) is None:
                self._may_admit.clear()
                await self._may_admit.wait()
            updates = self.buffer.updates
            if self._sink is not None:
                self._sink.emit(
                    GroupAdmitted,
                    iteration=upcoming.key.iteration,
                    task_id=upcoming.key.task_id,
                    updates=updates,
                    replaces=upcoming.replaces,
                )
            await self._begin(upcoming.key, self.buffer.admit(upcoming, updates))
            self._has_news.set()

    def _request(self, key: GroupKey, one: BufferedGroup) -> GroupRequest:
        return GroupRequest(row=one.row, iteration=key.iteration, phase=TRAIN_PHASE, size=self._group_size)

    async def _begin(self, key: GroupKey, one: BufferedGroup, *, version: int | None = None) -> None:
        """Roll out the unfinished siblings; with replays, from their recorded steps."""
        request, kept = self._request(key, one), {}
        if key in self._record:
            kept = await asyncio.to_thread(self._record.kept, key)
        unfinished = [rollout for rollout in request.rollouts() if rollout.key.index not in kept]
        if self._record.is_complete(key):
            unfinished = []
        if self._replays:
            turns = self._record.turns
            unfinished = [replace(r, recorded=turns(r.key, version=version)) for r in unfinished]
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
        """Return a recorded batch, and remove its groups from the buffer."""
        batch = self.buffer.recorded(selected)
        sides = []
        for chosen, removed in ((selected.groups, batch.trained), (selected.discarded, batch.discarded)):
            recorded = await asyncio.to_thread(self._record.trajectories, chosen)
            requests = [self._request(key, group) for key, group in removed.items()]
            sides.append([_group(*pair) for pair in zip(requests, recorded, strict=True)])
        return Collection(trained=sides[0], discarded=sides[1], rounds=batch.rounds)

    async def _news(self) -> None:
        """Wait for another complete or admitted group. Raises the error that made the feed fail."""
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
    return [buffered.group for buffered in found.values() if buffered.group is not None]


def _selected(found: Mapping[GroupKey, BufferedGroup]) -> list[SelectedGroup]:
    return [
        SelectedGroup(
            iteration=key.iteration,
            task_id=key.task_id,
            updates=buffered.updates,
            indices=[t.key.index for t in buffered.group.trajectories] if buffered.group else [],
        )
        for key, buffered in found.items()
    ]
