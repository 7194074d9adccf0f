"""Dynamic sampling: which groups are replaced, when it stops, and what the record says of them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from engine.config.algorithm import AlgorithmConfig
from engine.orchestrator.training.curriculum import TaskCursor
from engine.orchestrator.training.resampling import Collection, collect_informative, discarded_members
from engine.types import Group, TaskAnswer, TaskRow
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
    tried = [task_id for asked in sampler.asked for task_id in asked]
    assert len(set(tried)) == len(tried)
    assert sorted(group.task.id for group in found.groups) == sorted(tried)
    assert found.metrics() == {
        "resampling/rounds": float(len(sampler.asked) - 1),
        "resampling/discarded": float(len(tried) - 6),
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
