"""The online curriculum: frequencies, rests, and draws repeated from a checkpoint or a record."""

from __future__ import annotations

import json
import math
import random
from collections import Counter

import pytest

from engine.config.learning.training import CurriculumConfig
from engine.orchestrator.training.curriculum import TaskCursor
from engine.orchestrator.training.task_weights import GroupOutcome, TaskState, TaskWeights, draw_pass
from engine.types import TaskRow, TerminationReason
from tests.builders.rollout_builders import make_row
from tests.unit.trainer.builders.rl_builders import make_group, make_trajectory

CONFIG = CurriculumConfig(mode="solve_rate", rest_passes=3, groups=2, min_weight=0.25)
SIBLINGS = 8


def state(credit: float, *groups: tuple[int, int], drawn: int | None = None) -> TaskState:
    return TaskState(credit=credit, groups=groups, drawn=drawn)


def rows(count: int) -> list[TaskRow]:
    return [make_row(f"{number:016x}") for number in range(count)]


def cursor(count: int, *, lag: int = 0, seed: int = 3, per_iteration: int = 4) -> TaskCursor:
    return TaskCursor(rows(count), per_iteration=per_iteration, seed=seed, curriculum=CONFIG, lag=lag)


def outcomes(tasks: list[str], iteration: int) -> list[GroupOutcome]:
    """Simulate the outcomes of a policy; a third of the tasks is solved always or never."""
    simulated = []
    for task in tasks:
        ability = (0.0, 0.1, 0.3, 0.5, 0.9, 1.0)[int(task, 16) % 6]
        rng = random.Random(f"{task}:{iteration}")
        simulated.append(GroupOutcome(task, sum(rng.random() < ability for _ in range(SIBLINGS)), SIBLINGS))
    return simulated


def taken(source: TaskCursor) -> list[str]:
    return [row.task.id for row in source.take()]


@pytest.mark.parametrize("solved", [1, 2, 4, 7])
def test_the_expected_number_of_draws_is_the_sum_of_the_weights(solved: int) -> None:
    """Over evenly spaced phases the mean is exact up to their distance."""
    phases, passes = 1000, 7
    states = {str(place): state(place / phases, (solved, SIBLINGS)) for place in range(phases)}
    weight = states["0"].weight(CONFIG.min_weight)
    assert weight == max(0.25, 4 * solved / SIBLINGS * (1 - solved / SIBLINGS))
    count = 0
    for number in range(passes):
        drawn, states = draw_pass(states, number, CONFIG)
        count += len(drawn)
    assert count / phases == pytest.approx(passes * weight, abs=2 / phases)


def test_draws_differ_from_the_sum_of_the_weights_by_less_than_one() -> None:
    chance = random.Random(11)
    states = {str(task): state(chance.random()) for task in range(60)}
    expected: Counter[str] = Counter()
    by_weight: Counter[str] = Counter()
    last = dict.fromkeys(states, -1)
    longest = CONFIG.rest_passes + math.ceil(1 / CONFIG.min_weight)
    for number in range(300):
        weights = {task: current.weight(CONFIG.min_weight) for task, current in states.items()}
        expected.update(weights)
        drawn, states = draw_pass(states, number, CONFIG)
        for task in drawn:
            by_weight[task] += bool(weights[task])
            last[task] = number
            if chance.random() < 0.7:  # the other outcomes arrive later
                groups = (*states[task].groups, (chance.choice([0, 1, 3, 4, 7, 8]), SIBLINGS))[-2:]
                states[task] = state(states[task].credit, *groups, drawn=number)
        assert all(abs(by_weight[task] - expected[task]) < 1 for task in states)
        assert all(number - last_draw <= longest for last_draw in last.values()), "every task comes back"
    assert len(by_weight) == 60


@pytest.mark.parametrize("solved", [0, SIBLINGS])
def test_tasks_solved_always_or_never_rest_and_return(solved: int) -> None:
    states = {"t": state(0.5, (solved, SIBLINGS), drawn=0)}
    passes = []
    for number in range(1, 13):
        drawn, states = draw_pass(states, number, CONFIG)
        passes += [number] * len(drawn)
    assert passes == [4, 8, 12]
    waiting, unchanged = draw_pass(states, 16, CONFIG, waiting={"t"})
    assert (waiting, unchanged) == ([], states)


def test_solve_rate_uses_only_the_newest_groups_without_lost_ones() -> None:
    weights = TaskWeights(["t"], CONFIG, seed=0, lag=0)
    for batch, solved in enumerate([0, 8, 4, 2]):
        weights.begin_iteration()
        weights.observe(batch, [GroupOutcome("t", solved, SIBLINGS), GroupOutcome("t", 0, 0)])
    weights.begin_iteration()
    assert weights.metrics() == {
        "curriculum/resting_none": 0.0,
        "curriculum/resting_all": 0.0,
        "curriculum/unmeasured": 0.0,
        "curriculum/weight_mean": 4 * 6 / 16 * 10 / 16,
    }


def test_rollouts_ended_by_time_limits_do_not_count_as_failures() -> None:
    timed, submitted = TerminationReason.ROLLOUT_TIMEOUT, TerminationReason.SUBMITTED

    def outcome(*ends: tuple[float, TerminationReason]) -> GroupOutcome:
        rollouts = [
            make_trajectory(reward, reason, index=i, task_id="t") for i, (reward, reason) in enumerate(ends)
        ]
        return GroupOutcome.of(make_group(rollouts, "t"))

    assert outcome((0.0, timed), (0.0, timed)) == ("t", 0, 0)
    assert outcome((0.0, timed), (0.0, submitted)) == ("t", 0, 1)
    assert outcome((0.0, timed), (1.0, timed), (0.0, submitted)) == ("t", 1, 3)


def test_iterations_have_distinct_tasks_even_if_most_tasks_rest() -> None:
    source = cursor(6, per_iteration=5)
    for iteration in range(40):
        tasks = taken(source)
        assert len(set(tasks)) == 5
        source.observe(iteration, [GroupOutcome(task, 0, SIBLINGS) for task in tasks])
    assert source.metrics()["curriculum/resting_none"] == 6
    assert len(source.state_dict()["remaining"]) <= 6, "no task waits twice"


@pytest.mark.parametrize("lag", [0, 1, 4])
def test_a_restored_checkpoint_continues_with_the_same_tasks(lag: int) -> None:
    whole, drawn = cursor(12, lag=lag), []
    for iteration in range(60):
        drawn.append(taken(whole))
        whole.observe(iteration, outcomes(drawn[-1], iteration))
        if iteration == 20:
            saved = json.loads(json.dumps(whole.state_dict()))
    restored = cursor(12, lag=lag)
    restored.load_state_dict(saved)
    for iteration in range(21, 60):
        peeked = [row.task.id for row in restored.peek()]
        assert taken(restored) == peeked == drawn[iteration]
        restored.observe(iteration, outcomes(peeked, iteration))


def test_drawn_tasks_do_not_depend_on_the_progress_of_the_trainer() -> None:
    """A feed may take an iteration's tasks early or late, and a resumed attempt has all outcomes at once."""
    lag, iterations = 2, 30
    prompt, drawn = cursor(12, lag=lag), []
    for iteration in range(iterations + lag):
        drawn.append(taken(prompt))
        if iteration >= lag:
            prompt.observe(iteration - lag, outcomes(drawn[iteration - lag], iteration - lag))
    late = cursor(12, lag=lag)
    assert [taken(late) for _ in range(lag + 1)] == drawn[: lag + 1]
    for iteration in range(iterations - 1):
        late.observe(iteration, outcomes(drawn[iteration], iteration))
        late.observe(iteration, outcomes(drawn[iteration], iteration))
        assert taken(late) == drawn[iteration + lag + 1]
    repeated = cursor(12, lag=lag)
    for batch in range(iterations):
        repeated.observe(batch, outcomes(drawn[batch], batch))
    assert [taken(repeated) for _ in range(iterations + lag)] == drawn
