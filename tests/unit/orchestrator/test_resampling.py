"""Dynamic sampling: which groups are replaced, when it stops, and what the record says of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import astuple
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from engine.config.algorithm import AlgorithmConfig
from engine.config.training import ScheduleConfig
from engine.events.spool import SPOOL_NAME
from engine.orchestrator.training.curriculum import TaskCursor
from engine.orchestrator.training.feed import RolloutFeed
from engine.orchestrator.training.record import TrainingRecord
from engine.orchestrator.training.resampling import Collection, collect_informative, discarded_members
from engine.rollout import RolloutRequest
from engine.types import Grade, Group, RolloutKey, TaskAnswer, TaskRow, Trajectory, Verdict
from tests.builders.rollout_builders import make_row
from tests.unit.orchestrator.test_collection import events
from tests.unit.orchestrator.test_in_flight import Attempt, Roller, attempt, ended, turn, until
from tests.unit.trainer.rl_builders import make_group, make_task, make_trajectory

DAPO = AlgorithmConfig(preset="dapo")


def rows(count: int) -> list[TaskRow]:
    return [
        TaskRow(task=make_task(f"t{i}"), answer=TaskAnswer(gold_patch=""), split="train")
        for i in range(count)
    ]


def group_of(row: TaskRow, rewards: Sequence[float | None]) -> Group:
    trajectories = [make_trajectory(reward, index=i, task_id=row.task.id) for i, reward in enumerate(rewards)]
    return make_group(trajectories, row.task.id)


class Sampler:
    """Tasks whose number is divisible are mixed, all others uniform."""

    def __init__(self, divisor: int = 2) -> None:
        self.divisor = divisor
        self.asked: list[list[str]] = []

    async def __call__(self, wanted: Sequence[TaskRow]) -> list[Group]:
        self.asked.append([row.task.id for row in wanted])
        return [
            group_of(row, [1.0, 0.0] if int(row.task.id[1:]) % self.divisor == 0 else [1.0, 1.0])
            for row in wanted
        ]


async def collected(
    count: int, *, wanted: int, rounds: int = 3, divisor: int = 2
) -> tuple[Collection, Sampler]:
    cursor = TaskCursor(rows(count), per_iteration=wanted, seed=0)
    sampler = Sampler(divisor)
    config = AlgorithmConfig(preset="dapo", max_resampling_rounds=rounds)
    return await collect_informative(cursor.take(), cursor, sampler, config), sampler


async def test_uniform_groups_are_replaced_until_enough_have_a_signal() -> None:
    found, sampler = await collected(64, wanted=6, rounds=20)
    assert len(found.trained) == 6
    assert all(int(group.task.id[1:]) % 2 == 0 for group in found.trained)
    assert found.discarded
    assert all(int(group.task.id[1:]) % 2 for group in found.discarded)
    assert found.rounds == len(sampler.asked) - 1
    missing = 6
    for asked in sampler.asked:
        assert len(asked) == missing
        missing -= sum(int(task_id[1:]) % 2 == 0 for task_id in asked)


async def test_no_task_is_tried_twice_and_every_sampled_group_is_kept() -> None:
    found, sampler = await collected(64, wanted=8)
    tried = [task_id for asked in sampler.asked for task_id in asked]
    assert len(set(tried)) == len(tried)
    assert sorted(group.task.id for group in found.groups) == sorted(tried)
    assert found.metrics() == {
        "resampling/rounds": float(len(sampler.asked) - 1),
        "resampling/discarded": float(len(tried) - len(found.trained)),
    }


async def test_it_stops_after_the_rounds_and_trains_on_what_there_is() -> None:
    found, sampler = await collected(64, wanted=32, rounds=1, divisor=32)
    assert len(sampler.asked) == 2
    assert found.rounds == 1
    assert [group.task.id for group in found.trained] in (["t0", "t32"], ["t32", "t0"])


async def test_it_stops_where_the_split_has_no_task_left() -> None:
    found, sampler = await collected(5, wanted=4, rounds=50)
    assert sorted(task_id for asked in sampler.asked for task_id in asked) == ["t0", "t1", "t2", "t3", "t4"]
    assert len(found.trained) == 3
    assert found.rounds == 1


async def test_all_groups_informative_means_no_round() -> None:
    cursor = TaskCursor(rows(4), per_iteration=2, seed=0)
    even = [row for row in rows(4) if int(row.task.id[1:]) % 2 == 0]
    found = await collect_informative(even, cursor, Sampler(), DAPO)
    assert (len(found.trained), found.discarded, found.rounds) == (2, [], 0)


async def test_a_resumed_iteration_asks_for_the_same_tasks() -> None:
    cursor = TaskCursor(rows(32), per_iteration=6, seed=7)
    cursor.take()
    state = json.loads(json.dumps(cursor.state_dict()))
    asked = []
    for _ in range(2):
        again = TaskCursor(rows(32), per_iteration=6, seed=7)
        again.load_state_dict(state)
        sampler = Sampler()
        await collect_informative(again.take(), again, sampler, DAPO)
        asked.append(sampler.asked)
    assert asked[0] == asked[1]
    assert len(asked[0]) > 1


def test_replaced_groups_are_on_record_without_loss() -> None:
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


class GradedRoller(Roller):
    """Ends two siblings of a group, in tasks with odd numbers with equal rewards; the third never ends."""

    def __init__(self, attempt: Attempt) -> None:
        super().__init__(attempt, ending=frozenset())

    async def roll_out(self, request: RolloutRequest) -> Trajectory:
        if request.key.index == 2:
            return await super().roll_out(request)
        self.requests.append(request)
        key, observer = request.key, self.attempt.observer
        observer.trajectory_started(key, "sb")
        observer.step_finished(key, turn(0, version=0))
        await asyncio.sleep(0)
        is_solved = key.index == 0 or int(key.task_id[:2], 16) % 2 == 1
        grade = Grade(verdict=Verdict.PASSED if is_solved else Verdict.FAILED, reward=float(is_solved))
        found = ended(key, steps=1, grade=grade)
        await observer.trajectory_finished(found)
        return found


def feed_of(folder: Path, roller: Roller) -> RolloutFeed:
    """A feed of two groups an iteration for three iterations, at most one update stale."""
    return RolloutFeed(
        ScheduleConfig(mode="async", max_staleness=1, min_siblings=2, straggler_s=0.0),
        DAPO,
        roller,
        TaskCursor([make_row(f"{number:02x}" * 8) for number in range(8)], per_iteration=2, seed=0),
        TrainingRecord.read(folder / SPOOL_NAME, trained=0),
        roller.attempt.sink,
        iterations=3,
        batch=2,
        group_size=3,
    )


async def batches_of(feed: RolloutFeed, count: int) -> list[Collection]:
    found = []
    for version in range(count):
        assert len(feed.buffer.tasks(feed.buffer.updates)) == 2
        found.append(await feed.next_batch(policy_version=version))
        feed.updated()
    return found


def described(found: Sequence[Collection]) -> list[Any]:
    """What a batch is, but for numbers that only rollouts of this attempt have."""
    return [(one.keys(), len(one.trained), one.metrics()) for one in found]


@pytest.mark.parametrize("with_checkpoint", [True, False])
async def test_a_killed_feed_counts_the_groups_that_it_replaced_once(
    tmp_path: Path, with_checkpoint: bool
) -> None:
    with attempt(tmp_path, 1) as first:
        feed = feed_of(tmp_path, GradedRoller(first))
        before = await batches_of(feed, 1)
        state, tasks = feed.buffer.state_dict(), feed.buffer._cursor.state_dict()
        await until(lambda: feed.buffer.replaced)
        await feed.close()
    replaced = set(feed.buffer.replaced)
    with attempt(tmp_path, 2) as second:
        roller = GradedRoller(second)
        feed = feed_of(tmp_path, roller)
        if with_checkpoint:
            feed.buffer._cursor.load_state_dict(tasks)
            feed.buffer.load_state_dict(state)
        feed.buffer.follow_record()
        assert set(feed.buffer.replaced) >= replaced
        after = await batches_of(feed, 2 if with_checkpoint else 3)
        await feed.close()
    if not with_checkpoint:
        assert described(after[:1]) == described(before)
    whole = [*before, *after[-2:]]
    for one in whole:
        assert [int(group.task.id[:2], 16) % 2 for group in one.trained] == [0, 0]
        assert all(int(group.task.id[:2], 16) % 2 == 1 for group in one.discarded)
        assert one.rounds == -(-len(one.discarded) // 2)
    assert sum(len(one.discarded) for one in whole) > 0
    keys = list(chain(*map(Collection.keys, whole)))
    assert {key.index for key in keys} == {0, 1}
    finished = [one for one in events(tmp_path, "trajectory_finished") if one["reward"] is not None]
    made = sorted(astuple(RolloutKey(**one["ref"])) for one in finished)
    assert made == sorted(map(astuple, keys)), "nothing was made twice or left out"
    for event in events(tmp_path, "group_admitted"):
        if event["replaces"] is not None:
            assert int(event["replaces"][:2], 16) % 2 == 1
            assert (event["iteration"], event["replaces"]) in {(key.iteration, key.task_id) for key in keys}
    with attempt(tmp_path, 3) as third:
        roller = GradedRoller(third)
        feed = feed_of(tmp_path, roller)
        feed.buffer.follow_record()
        assert described(await batches_of(feed, 3)) == described(whole)
        await feed.close()
    assert not roller.requests, "the record is repeated without a rollout"
