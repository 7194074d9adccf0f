"""Dynamic sampling of synchronous iterations: which groups are replaced, and when it stops."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config.learning.algorithm import AlgorithmConfig
from engine.config.learning.training import ScheduleConfig
from engine.config.recipes import resolve
from engine.config.run import TrainRun
from engine.orchestrator.training.curriculum import TaskCursor
from engine.orchestrator.training.feed import RolloutFeed
from engine.orchestrator.training.record import GroupKey, TrainingRecord
from engine.orchestrator.training.resampling import Collection as CollectedGroups
from engine.orchestrator.training.resampling import discarded_members
from engine.rollout.scheduler import RolloutRequest
from engine.types import Group, TaskAnswer, TaskRow, Trajectory
from tests.unit.orchestrator.memory_sink import MemorySink
from tests.unit.trainer.builders.rl_builders import make_group, make_task, make_trajectory

DAPO = AlgorithmConfig(preset="dapo")


def rows(count: int) -> list[TaskRow]:
    return [
        TaskRow(task=make_task(f"t{i}"), answer=TaskAnswer(gold_patch=""), split="train")
        for i in range(count)
    ]


def group_of(row: TaskRow, rewards: Sequence[float | None]) -> Group:
    trajectories = [make_trajectory(reward, index=i, task_id=row.task.id) for i, reward in enumerate(rewards)]
    return make_group(trajectories, row.task.id)


class FakeRolloutSource:
    """Scheduler double: divisible tasks are mixed, others uniform; rollouts end in random order."""

    def __init__(self, divisor: int = 2, *, seed: int = 0) -> None:
        self.divisor = divisor
        self.asked: list[list[str]] = []
        """Tasks whose rollouts began while others were in flight, by round."""
        self._running = 0
        self._rng = random.Random(seed)

    def is_mixed(self, task_id: str) -> bool:
        return int(task_id[1:]) % self.divisor == 0

    async def roll_out(self, request: RolloutRequest) -> Trajectory:
        key = request.key
        if not self._running:
            self.asked.append([])
        if key.index == 0:
            self.asked[-1].append(key.task_id)
        self._running += 1
        for _ in range(self._rng.randint(1, 9)):
            await asyncio.sleep(0)
        self._running -= 1
        return self.trajectory(key.iteration, key.task_id, key.index)

    def trajectory(self, iteration: int, task_id: str, index: int) -> Trajectory:
        reward = 0.0 if index and self.is_mixed(task_id) else 1.0
        return make_trajectory(reward, index=index, task_id=task_id, iteration=iteration)

    async def wait_for_room(self) -> None:
        raise AssertionError("a synchronous iteration queues all of its groups at once")

    def restarted(self) -> AbstractContextManager[None]:
        return nullcontext()


class Record(TrainingRecord):
    """Record of an earlier attempt that finished the groups of some tasks."""

    def __init__(self, source: FakeRolloutSource, tasks: Collection[str] = ()) -> None:
        super().__init__(Path("none"))
        self._source, self._tasks = source, tasks

    def __contains__(self, key: GroupKey) -> bool:
        return key.task_id in self._tasks

    def kept(self, key: GroupKey, *, with_lost: bool = False) -> dict[int, Trajectory]:  # noqa: ARG002
        return {index: self._source.trajectory(key.iteration, key.task_id, index) for index in range(2)}


def feed_of(
    source: FakeRolloutSource, cursor: TaskCursor, *, wanted: int, rounds: int = 3, kept: Collection[str] = ()
) -> RolloutFeed:
    return RolloutFeed(
        ScheduleConfig(),
        AlgorithmConfig(preset="dapo", max_resampling_rounds=rounds),
        source,
        cursor,
        Record(source, kept),
        None,
        iterations=2,
        batch=wanted,
        group_size=2,
    )


async def collected(
    count: int,
    *,
    wanted: int,
    rounds: int = 3,
    divisor: int = 2,
    seed: int = 0,
    kept: Collection[str] = (),
) -> tuple[CollectedGroups, FakeRolloutSource]:
    source = FakeRolloutSource(divisor, seed=seed)
    cursor = TaskCursor(rows(count), per_iteration=wanted, seed=0)
    feed = feed_of(source, cursor, wanted=wanted, rounds=rounds, kept=kept)
    batch = await feed.next_batch(policy_version=0)
    await feed.close()
    return batch, source


async def test_uniform_groups_are_replaced_until_enough_have_a_signal() -> None:
    batch, source = await collected(64, wanted=6, rounds=20)
    assert len(batch.trained) == 6
    assert all(int(group.task.id[1:]) % 2 == 0 for group in batch.trained)
    assert batch.discarded
    assert all(int(group.task.id[1:]) % 2 for group in batch.discarded)
    assert batch.rounds == len(source.asked) - 1
    missing = 6
    for asked in source.asked:
        assert len(asked) == missing
        missing -= sum(int(task_id[1:]) % 2 == 0 for task_id in asked)
    tried = [task_id for asked in source.asked for task_id in asked]
    assert len(set(tried)) == len(tried)
    assert sorted(group.task.id for group in batch.groups) == sorted(tried)
    assert batch.metrics() == {
        "resampling/rounds": float(len(source.asked) - 1),
        "resampling/discarded": float(len(tried) - 6),
    }


async def test_resampling_stops_after_its_rounds_and_trains_on_fewer_groups() -> None:
    batch, source = await collected(64, wanted=32, rounds=1, divisor=32)
    assert len(source.asked) == 2
    assert batch.rounds == 1
    assert [group.task.id for group in batch.trained] in (["t0", "t32"], ["t32", "t0"])


class Losing(FakeRolloutSource):
    """Scheduler double that loses the rollouts of some tasks; all other groups are uniform."""

    def __init__(self, is_lost: Callable[[str], bool]) -> None:
        super().__init__()
        self.is_lost = is_lost

    def trajectory(self, iteration: int, task_id: str, index: int) -> Trajectory:
        reward = None if self.is_lost(task_id) else 1.0
        return make_trajectory(reward, index=index, task_id=task_id, iteration=iteration)


async def test_a_first_round_lost_to_infrastructure_is_not_resampled() -> None:
    source = Losing(lambda _: True)
    feed = feed_of(source, TaskCursor(rows(64), per_iteration=4, seed=0), wanted=4)
    batch = await feed.next_batch(policy_version=0)
    await feed.close()
    assert (len(source.asked), len(batch.trained), len(batch.discarded)) == (1, 0, 4)


@pytest.mark.parametrize("place", [0, 1])
async def test_a_lost_group_is_replaced_at_any_position_of_its_round(place: int) -> None:
    cursor = TaskCursor(rows(64), per_iteration=2, seed=0)
    lost = cursor.peek()[place].task.id
    source = Losing(lost.__eq__)
    feed = feed_of(source, cursor, wanted=2, rounds=1)
    await feed.next_batch(policy_version=0)
    await feed.close()
    assert [len(asked) for asked in source.asked] == [2, 2]


async def test_resampling_stops_if_the_split_has_no_tasks_left() -> None:
    batch, source = await collected(5, wanted=4, rounds=50)
    assert sorted(task_id for asked in source.asked for task_id in asked) == ["t0", "t1", "t2", "t3", "t4"]
    assert len(batch.trained) == 3
    assert batch.rounds == 1


async def test_a_resumed_iteration_requests_the_same_tasks() -> None:
    cursor = TaskCursor(rows(32), per_iteration=6, seed=7)
    cursor.take()
    state = json.loads(json.dumps(cursor.state_dict()))
    asked = []
    for seed in range(2):
        restored = TaskCursor(rows(32), per_iteration=6, seed=7)
        restored.load_state_dict(state)
        source = FakeRolloutSource(seed=seed)
        feed = feed_of(source, restored, wanted=6)
        feed.buffer.begin_at(1)
        await feed.next_batch(policy_version=1)
        await feed.close()
        asked.append(source.asked)
    assert asked[0] == asked[1]
    assert len(asked[0]) > 1


@settings(max_examples=100, deadline=None)
@given(
    wanted=st.integers(1, 8),
    spare=st.integers(0, 24),
    rounds=st.integers(1, 5),
    divisor=st.integers(1, 6),
    kept=st.frozensets(st.integers(0, 31)),
    seed=st.integers(0, 10_000),
)
def test_every_round_requests_the_groups_still_missing(
    wanted: int, spare: int, rounds: int, divisor: int, kept: frozenset[int], seed: int
) -> None:
    """Groups and their order depend neither on the order of completion nor on recorded rollouts."""
    count = wanted + spare
    known = {f"t{number}" for number in kept}
    batch, source = asyncio.run(
        collected(count, wanted=wanted, rounds=rounds, divisor=divisor, seed=seed, kept=known)
    )
    cursor = TaskCursor(rows(count), per_iteration=wanted, seed=0)
    asked = [[row.task.id for row in cursor.take()]]
    while len(asked) <= rounds:
        tried = [task_id for tasks in asked for task_id in tasks]
        missing = wanted - sum(map(source.is_mixed, tried))
        more = [row.task.id for row in cursor.take(missing, exclude=tried)]
        if not more:
            break
        asked.append(more)
    tried = [task_id for tasks in asked for task_id in tasks]
    assert [task_id for tasks in source.asked for task_id in tasks] == [
        task_id for task_id in tried if task_id not in known
    ]
    assert known or source.asked == asked
    assert [group.task.id for group in batch.trained] == list(filter(source.is_mixed, tried))
    assert [group.task.id for group in batch.discarded] == [
        task_id for task_id in tried if not source.is_mixed(task_id)
    ]
    assert batch.rounds == len(asked) - 1


async def test_a_synchronous_feed_is_idle_outside_of_its_collection() -> None:
    """Evaluations, checkpoints and pauses find nothing in flight; no event is emitted."""
    source, sink = FakeRolloutSource(divisor=1), MemorySink()
    config = resolve("frozenlake", {"trainer.tasks_per_iteration": 3, "trainer.iterations": 2})
    assert isinstance(config, TrainRun)
    cursor = TaskCursor(rows(12), per_iteration=3, seed=0)
    feed = RolloutFeed.of(config, source, cursor, TrainingRecord(Path("none")), sink)
    for iteration in range(2):
        tasks = feed.buffer.tasks(iteration)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(source.asked) == iteration
        batch = await feed.next_batch(policy_version=iteration)
        assert source.asked[-1] == tasks == [group.task.id for group in batch.trained]
        assert {group.iteration for group in batch.trained} == {iteration}
        assert not feed.buffer.open
        await feed.drain()
        feed.updated()
    await feed.close()
    assert not sink.events


def test_members_of_replaced_groups_carry_no_loss() -> None:
    group = group_of(rows(1)[0], [1.0, 1.0, None])
    members = discarded_members(group, DAPO, max_context=64)
    assert [member.loss_mask for member in members] == [False] * 3
    assert [member.mask_reason for member in members] == ["zero_advantage"] * 2 + ["infrastructure"]
    assert [member.advantage for member in members] == [0.0, 0.0, None]


def test_a_cursor_leaves_excluded_tasks_for_the_next_iteration() -> None:
    cursor = TaskCursor(rows(4), per_iteration=2, seed=0)
    first = [row.task.id for row in cursor.take()]
    more = [row.task.id for row in cursor.take(5, exclude=first)]
    assert sorted(first + more) == ["t0", "t1", "t2", "t3"]
    assert cursor.take(1, exclude=["t0", "t1", "t2", "t3"]) == []
    later = [row.task.id for row in cursor.take(3)]
    assert len(set(later)) == 3
