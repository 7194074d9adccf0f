"""Sources of an iteration's groups: sampled on demand, or collected all the time by a ``RolloutFeed``."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from engine.config.run import TrainRun
from engine.orchestrator.context import RunContext
from engine.orchestrator.setup import check_losses, collect_groups
from engine.orchestrator.training.curriculum import TaskCursor
from engine.orchestrator.training.feed import RolloutFeed
from engine.orchestrator.training.progress import Saved
from engine.orchestrator.training.record import GroupKey, TrainingRecord
from engine.orchestrator.training.resampling import Collection, collect_informative
from engine.orchestrator.training.staleness import staleness_metrics
from engine.orchestrator.watch.event_observer import TRAIN_PHASE
from engine.rollout.scheduler import GroupRequest, RolloutScheduler
from engine.types import Group, TaskRow


class Source(ABC):
    """Source of the groups that a training run updates on."""

    @abstractmethod
    def tasks(self, iteration: int) -> list[str]:
        """Return the tasks that an iteration adds; called once, before its ``collect``."""

    @abstractmethod
    async def collect(self, iteration: int, *, policy_version: int) -> Collection:
        """Return the groups of an iteration.

        Raises:
            RunStopped, FencedError, DeliveryError: the attempt must end.
            RolloutsLostError: not one rollout could run and be graded.
        """

    def new_weights(self) -> AbstractContextManager[None]:
        """Return a context in which new weights are published."""
        return nullcontext()

    def updated(self) -> None:  # noqa: B027 - only a feed runs ahead
        """Take note that the update of an iteration is made."""

    def metrics(self, groups: Sequence[Group], *, version: int) -> dict[str, float]:  # noqa: ARG002
        """Return metrics of an update's groups, given the version of the weights before it."""
        return {}

    @property
    def saved(self) -> Mapping[str, Saved]:
        """Return the parts whose state belongs into checkpoints."""
        return {}

    def follow_record(self) -> None:  # noqa: B027 - only a feed runs ahead
        """Go on from the record of earlier attempts; called once the saved parts are restored."""

    async def drain(self) -> None:  # noqa: B027 - only a feed runs ahead
        """Wait until nothing is in flight, for a pause."""

    async def close(self) -> None:  # noqa: B027 - only a feed runs ahead
        """Cancel what is in flight."""


class OnDemand(Source):
    """Groups sampled while the trainer waits: schedule ``sync``.

    Args:
        config: the run's configuration.
        run: this attempt.
        scheduler: rolls out.
        cursor: order of the tasks.
        record: what earlier attempts collected; None samples it again.
    """

    def __init__(
        self,
        config: TrainRun,
        run: RunContext,
        scheduler: RolloutScheduler,
        cursor: TaskCursor,
        record: TrainingRecord | None,
    ) -> None:
        self._config = config
        self._run = run
        self._scheduler = scheduler
        self._cursor = cursor
        self._record = record
        self._rows: Sequence[TaskRow] = ()
        self._iteration = 0

    def tasks(self, iteration: int) -> list[str]:
        """Take the tasks of an iteration and return them."""
        self._iteration, self._rows = iteration, self._cursor.take()
        return [row.task.id for row in self._rows]

    async def collect(self, iteration: int, *, policy_version: int) -> Collection:  # noqa: ARG002
        """Roll out a group of each task; under dynamic sampling, of others in place of uniform ones."""
        if self._config.algorithm.dynamic_sampling:
            return await collect_informative(self._rows, self._cursor, self._sample, self._config.algorithm)
        return Collection(trained=await self._sample(self._rows))

    async def _sample(self, rows: Sequence[TaskRow]) -> list[Group]:
        size = self._config.rollout.group_size
        requests = [
            GroupRequest(row=row, iteration=self._iteration, phase=TRAIN_PHASE, size=size) for row in rows
        ]
        if (record := self._record) is None:
            return await collect_groups(self._run, self._scheduler, requests)
        kept = await asyncio.to_thread(
            record.kept_of, [GroupKey(self._iteration, row.task.id) for row in rows]
        )
        return await collect_groups(self._run, self._scheduler, requests, kept=kept, recorded=record.turns)


class Continuous(Source):
    """Groups of a ``RolloutFeed``: all other schedules.

    Args:
        config: the run's configuration.
        run: this attempt.
        scheduler: rolls out.
        cursor: order of the tasks.
        record: what earlier attempts collected.
    """

    def __init__(
        self,
        config: TrainRun,
        run: RunContext,
        scheduler: RolloutScheduler,
        cursor: TaskCursor,
        record: TrainingRecord,
    ) -> None:
        self._run = run
        self._group_size = config.rollout.group_size
        self._feed = RolloutFeed(
            config.schedule,
            config.algorithm,
            scheduler,
            cursor,
            record,
            run.sink,
            iterations=config.trainer.iterations,
            batch=config.trainer.tasks_per_iteration,
            group_size=config.rollout.group_size,
            replays=config.rollout.resume_in_flight == "replay",
        )

    def tasks(self, iteration: int) -> list[str]:
        """Return the tasks of an iteration; its rollouts may have begun."""
        return self._feed.buffer.tasks(iteration)

    async def collect(self, iteration: int, *, policy_version: int) -> Collection:
        """Wait for the next batch of complete groups."""
        batch = await self._run.interruptible(self._feed.next_batch(policy_version=policy_version))
        check_losses(batch.groups, f"iteration {iteration} ({TRAIN_PHASE})")
        return batch

    def new_weights(self) -> AbstractContextManager[None]:
        """Return a context in which unfinished rollouts wait, where they are to begin anew."""
        return self._feed.new_weights()

    def updated(self) -> None:
        """Let the feed admit further groups."""
        self._feed.updated()

    def metrics(self, groups: Sequence[Group], *, version: int) -> dict[str, float]:
        """Return the staleness of the groups and what they waited for."""
        return staleness_metrics(groups, version=version, group_size=self._group_size)

    @property
    def saved(self) -> Mapping[str, Saved]:
        """Return the buffer of the feed."""
        return {"feed": self._feed.buffer}

    def follow_record(self) -> None:
        """Go on from the record of earlier attempts. Raises ConfigError: the tasks have changed."""
        self._feed.buffer.follow_record()

    async def drain(self) -> None:
        """Wait for the rollouts in flight. Raises as ``collect``."""
        await self._run.interruptible(self._feed.drain())

    async def close(self) -> None:
        """Cancel the rollouts in flight."""
        await self._feed.close()


def open_source(
    config: TrainRun,
    run: RunContext,
    scheduler: RolloutScheduler,
    cursor: TaskCursor,
    record: TrainingRecord | None,
) -> Source:
    """Return the source of a schedule; ``record`` may be None with ``sync`` only."""
    if record is None or config.schedule.mode == "sync":
        return OnDemand(config, run, scheduler, cursor, record)
    return Continuous(config, run, scheduler, cursor, record)
