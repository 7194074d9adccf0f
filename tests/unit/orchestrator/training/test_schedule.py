"""Admission, replacement and batches: staleness never exceeds its bound, and waiting always ends."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config.learning.algorithm import AlgorithmConfig
from engine.config.learning.training import CurriculumConfig, ScheduleConfig
from engine.events.schedule import BatchSelected, SelectedGroup
from engine.orchestrator.training.buffer import Batch, GroupBuffer
from engine.orchestrator.training.curriculum import TaskCursor
from engine.orchestrator.training.record import GroupKey, TrainingRecord
from engine.orchestrator.training.schedule import OpenGroup, choose_batch
from engine.orchestrator.training.task_weights import GroupOutcome
from engine.types import Group
from tests.builders.rollout_builders import make_row
from tests.unit.trainer.builders.rl_builders import make_trajectory


def test_a_due_straggler_delays_the_batch() -> None:
    late = OpenGroup(admitted_at=0, is_complete=False)
    quick = [OpenGroup(admitted_at=1, is_complete=True)] * 3
    assert choose_batch([late, *quick], updates=1, batch=2, staleness=2) == (1, 2)
    assert choose_batch([late, *quick], updates=2, batch=2, staleness=2) is None


def test_stragglers_are_waited_for_before_too_many_are_due_at_once() -> None:
    """Two groups have to be trained on by update 2, and each update has room for one."""
    late = OpenGroup(admitted_at=0, is_complete=False)
    fresh = OpenGroup(admitted_at=1, is_complete=True)
    assert choose_batch([late, late, fresh], updates=1, batch=1, staleness=2) is None
    assert choose_batch([late, fresh], updates=1, batch=1, staleness=2) == (1,)


def test_informative_groups_come_before_uniform_ones_unless_those_are_due() -> None:
    uniform = OpenGroup(admitted_at=0, is_complete=True, is_uniform=True)
    fresh = OpenGroup(admitted_at=1, is_complete=True)
    groups = [uniform, uniform, fresh, fresh]
    assert choose_batch(groups, updates=1, batch=2, staleness=2) == (2, 3)
    assert choose_batch(groups, updates=2, batch=2, staleness=2) == (0, 1)
    assert choose_batch(groups, updates=1, batch=3, staleness=2) == (0, 2, 3)
    assert choose_batch([uniform, fresh], updates=1, batch=1, staleness=1) == (0,)


class Record(TrainingRecord):
    """Record whose outcomes are set by the test."""

    def __init__(self) -> None:
        super().__init__(Path("none"))
        self.solved: dict[int, list[GroupOutcome]] = {}

    def outcomes(self, iteration: int) -> list[GroupOutcome]:
        return self.solved[iteration]


class DynamicRun:
    """Run with a curriculum whose groups end in random order; without rounds none is replaced."""

    iterations = 6

    def __init__(
        self, record: Record, schedule: ScheduleConfig, *, batch: int, tasks: int, rounds: int
    ) -> None:
        self.record, self.batch, self.rounds, self.schedule = record, batch, rounds, schedule
        self.cursor = TaskCursor(
            [make_row(f"{number:016x}") for number in range(tasks)],
            per_iteration=batch,
            seed=1,
            curriculum=CurriculumConfig(mode="solve_rate"),
            lag=schedule.staleness,
        )
        replacing = AlgorithmConfig(preset="dapo", max_resampling_rounds=rounds) if rounds else None
        self.buffer = GroupBuffer(
            schedule,
            replacing or AlgorithmConfig(),
            self.cursor,
            record,
            iterations=self.iterations,
            batch=batch,
        )
        self.checkpoint = self.state()

    def admit(self) -> bool:
        candidate = self.buffer.next_group()
        if candidate is not None:
            self.buffer.admit(candidate, self.buffer.updates)
        return candidate is not None

    def complete(self, key: GroupKey, *, is_uniform: bool) -> None:
        rewards = (1.0, 1.0 if is_uniform else 0.0)
        trajectories = tuple(make_trajectory(reward, index=i) for i, reward in enumerate(rewards))
        task = self.buffer.open[key].row.task
        group = Group(iteration=key.iteration, phase="train", task=task, trajectories=trajectories)
        self.buffer.complete(self.buffer.open[key], group)

    def update(self) -> bool:
        if (batch := self.buffer.choose()) is None:
            return False
        sides = [
            [
                SelectedGroup(iteration=key.iteration, task_id=key.task_id, updates=group.updates, indices=[])
                for key, group in groups.items()
            ]
            for groups in (batch.trained, batch.discarded)
        ]
        iteration = self.buffer.updates
        self.record.batches[iteration] = BatchSelected(
            seq=1,
            epoch=1,
            time=0.0,
            iteration=iteration,
            policy_version=0,
            groups=sides[0],
            discarded=sides[1],
        )
        solved = [GroupOutcome(group.task_id, 1, 2) for group in sides[0]]
        self.record.solved[iteration] = solved + [GroupOutcome(group.task_id, 2, 2) for group in sides[1]]
        self.take(batch)
        return True

    def take(self, batch: Batch) -> None:
        """Apply an update and check its bounds."""
        iteration = self.buffer.updates
        left = len(batch.trained) + len(batch.discarded)
        assert self.batch <= left <= (1 + self.rounds) * self.batch
        assert batch.rounds == -(-(left - self.batch) // self.batch)
        places = [list(self.record.admitted).index(key) for key in batch.trained]
        assert places == sorted(places), "the oldest come first"
        if self.schedule.mode == "one_step_off" and not self.rounds:
            assert {key.iteration for key in batch.trained} == {iteration}
        lags = [iteration - group.updates for group in batch.trained.values()]
        assert max(lags, default=0) <= self.schedule.staleness
        self.cursor.observe(iteration, self.record.outcomes(iteration))
        self.buffer.updates += 1

    def state(self) -> dict[str, Any]:
        state = {"feed": self.buffer.state_dict(), "tasks": self.cursor.state_dict()}
        restored: dict[str, Any] = json.loads(json.dumps(state))
        return restored

    def resumed(self) -> DynamicRun:
        """Return another attempt, restored from this one's checkpoint and record."""
        settled = {"batch": self.batch, "tasks": self.cursor.num_tasks, "rounds": self.rounds}
        other = DynamicRun(self.record, self.schedule, **settled)
        other.cursor.load_state_dict(self.checkpoint["tasks"])
        other.buffer.load_state_dict(self.checkpoint["feed"])
        other.buffer.follow_record()
        while (batch := self.record.batches.get(other.buffer.updates)) is not None:
            other.buffer.tasks(other.buffer.updates)
            other.take(other.buffer.recorded(batch))
        return other


@settings(max_examples=80, deadline=None)
@given(
    batch=st.integers(1, 3),
    staleness=st.sampled_from([None, 1, 2, 3]),
    rounds=st.integers(0, 3),
    spare=st.integers(0, 6),
    uniform=st.sampled_from([0.0, 0.3, 0.8, 1.0]),
    stubborn=st.integers(0, 3),
    seed=st.integers(0, 10_000),
)
def test_groups_are_trained_on_or_replaced_within_all_bounds(
    batch: int, staleness: int | None, rounds: int, spare: int, uniform: float, stubborn: int, seed: int
) -> None:
    """Check staleness, progress, the number of replacements and the state of resumed attempts."""
    mode = "one_step_off" if staleness is None else "async"
    rng = random.Random(seed)
    schedule = ScheduleConfig(mode=mode, max_staleness=staleness)
    run = DynamicRun(Record(), schedule, batch=batch, tasks=batch + spare, rounds=rounds)
    while run.buffer.updates < run.iterations:
        has_moved = rng.random() < 0.8 and run.admit()
        running = [key for key, group in run.buffer.open.items() if group.group is None]
        quick = [key for key in running if int(key.task_id, 16) % 4 >= stubborn]
        if running and (rng.random() < 0.7 or not has_moved):
            run.complete(rng.choice(quick or running), is_uniform=rng.random() < uniform)
            has_moved = True
        assert len(run.buffer.replaced) <= rounds * batch
        has_moved |= run.update()
        assert has_moved or run.admit(), "nothing is in flight or to be admitted, and there is no batch"
        if rng.random() < 0.1:
            assert run.resumed().state() == run.state()
        run.buffer.tasks(min(run.buffer.updates, run.iterations - 1))
        if rng.random() < 0.1:
            run.checkpoint = run.state()
    assert not run.buffer.open
    assert not run.buffer.replaced
    left = [group for event in run.record.batches.values() for group in (*event.groups, *event.discarded)]
    assert sorted((group.iteration, group.task_id) for group in left) == sorted(run.record.admitted)
    if uniform == 0.0 or not rounds:
        assert len(left) == batch * run.iterations
    elif uniform == 1.0:
        assert not any(event.groups for event in run.record.batches.values())
        assert spare == 0 or len(left) > batch * run.iterations
    for iteration in range(run.iterations):
        tasks = [key.task_id for key in run.record.admitted if key.iteration == iteration]
        assert run.buffer.tasks(iteration) == [
            task for task in tasks if run.record.admitted[GroupKey(iteration, task)].replaces is None
        ]
        assert len(run.buffer.tasks(iteration)) == batch
