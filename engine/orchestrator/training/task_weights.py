"""Online curriculum: draw the tasks of each pass by their current solve rates.

Weight of a task in a pass, with the share p of solved rollouts over its newest groups:

    1                               no group was graded yet
    max(min_weight, 4 p (1 − p))    0 < p < 1: the variance of the reward, relative to its maximum
    –                               p = 0 or p = 1: it rests

Every task has a credit, which starts at a seeded phase between 0 and 1. In each pass the credit grows by the
weight; a task whose credit reaches 1 is drawn, which costs 1. A resting task keeps its credit, and is drawn
in the first pass more than ``rest_passes`` after its last draw; if it is still always or never solved, it
rests again. A task that still waits from an earlier pass is skipped.

The frequencies are unbiased: over any sequence of passes and outcomes, the number of a task's draws by weight
differs from the sum of its weights by less than 1. If the weight is constant, the expected number over the
random phases is that sum. Tasks that keep resting are drawn once in ``rest_passes + 1`` passes, so every task
is drawn at least once in ``rest_passes + ⌈1 / min_weight⌉`` passes. Losses are not reweighted (importance
weights are 1): the objective is the mean over tasks by these frequencies, not the uniform mean.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from typing import Any, NamedTuple

from engine.config.learning.training import CurriculumConfig
from engine.orchestrator.watch.metrics import is_infrastructure
from engine.rollout.summary import RolloutSummary
from engine.types import Group

_TOLERANCE = 1e-9
"""Rounding of sums of weights."""


class GroupOutcome(NamedTuple):
    """Result of a task's group."""

    task_id: str
    solved: int
    graded: int

    @classmethod
    def of(cls, group: Group) -> GroupOutcome:
        """Count the siblings of a group that infrastructure did not lose."""
        graded = [RolloutSummary.of(t) for t in group.trajectories if not is_infrastructure(t)]
        solved, cut_short = (sum(map(attrgetter(name), graded)) for name in ("is_solved", "is_cut_short"))
        return cls.counted(group.task.id, solved, len(graded), cut_short=cut_short)

    @classmethod
    def counted(cls, task_id: str, solved: int, graded: int, *, cut_short: int) -> GroupOutcome:
        """Return an outcome; where none is solved, siblings ended by a time limit do not count as graded."""
        return cls(task_id, solved, graded if solved else graded - cut_short)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """Current state of a task."""

    credit: float
    groups: tuple[tuple[int, int], ...] = ()
    """Newest graded groups: rollouts solved and graded."""
    drawn: int | None = None
    """Number of the pass that drew it last."""

    @property
    def rate(self) -> float | None:
        """Return the solve rate; None before any graded group."""
        graded = sum(count for _, count in self.groups)
        return sum(count for count, _ in self.groups) / graded if graded else None

    def weight(self, min_weight: float) -> float:
        """Return the weight; 0 for a task that is always or never solved."""
        rate = self.rate
        if rate is None:
            return 1.0
        return max(min_weight, 4 * rate * (1 - rate)) if 0 < rate < 1 else 0.0

    def rests(self, number: int, rest_passes: int) -> bool:
        """Return whether the task rests in a pass."""
        return self.rate in (0.0, 1.0) and self.drawn is not None and number - self.drawn <= rest_passes


def draw_pass(
    states: Mapping[str, TaskState], number: int, config: CurriculumConfig, *, waiting: Collection[str] = ()
) -> tuple[list[str], dict[str, TaskState]]:
    """Return the tasks of a pass, in the order of ``states``, and the states after it.

    Args:
        states: state of every task.
        number: of the pass.
        config: weights and rests.
        waiting: tasks of earlier passes that no iteration has taken yet.
    """
    drawn: list[str] = []
    after = dict(states)
    for task_id, state in states.items():
        if task_id in waiting or state.rests(number, config.rest_passes):
            continue
        credit = state.credit + (state.weight(config.min_weight) or 1.0)
        if credit >= 1 - _TOLERANCE:
            drawn.append(task_id)
            after[task_id] = replace(state, credit=max(0.0, credit - 1), drawn=number)
        else:
            after[task_id] = replace(state, credit=credit)
    return drawn, after


class TaskWeights:
    """Current states of a run's tasks; part of the checkpoint.

    The tasks of iteration n depend only on the outcomes of batches before n − lag. These are known whenever a
    schedule with that staleness requests tasks, so that a run can be repeated from its record.

    Args:
        task_ids: the training tasks, in the dataset's order.
        config: weights and rests.
        seed: the run's seed.
        lag: maximum staleness of the schedule.
    """

    def __init__(self, task_ids: Iterable[str], config: CurriculumConfig, *, seed: int, lag: int) -> None:
        self._config = config
        self._lag = lag
        self._states = {
            task_id: TaskState(credit=random.Random(f"{seed}:phase:{task_id}").random())
            for task_id in task_ids
        }
        self._iterations = 0
        """Number of iterations whose tasks were requested."""
        self._outcomes: dict[int, list[GroupOutcome]] = {}
        """Batch → outcomes that are not counted yet."""

    def observe(self, batch: int, outcomes: Iterable[GroupOutcome]) -> None:
        """Store a batch's outcomes; those of a batch that is already counted are ignored."""
        if batch >= self._iterations - self._lag - 1:
            self._outcomes[batch] = [
                outcome for outcome in outcomes if outcome.graded and outcome.task_id in self._states
            ]

    def begin_iteration(self) -> None:
        """Count the outcomes that the next iteration's tasks depend on."""
        known = self._iterations - self._lag
        self._iterations += 1
        for batch in sorted(number for number in self._outcomes if number < known):
            for task_id, solved, graded in self._outcomes.pop(batch):
                state = self._states[task_id]
                groups = (*state.groups, (solved, graded))[-self._config.groups :]
                self._states[task_id] = replace(state, groups=groups)

    def draw(self, number: int, waiting: Collection[str]) -> list[str]:
        """Return the tasks of a pass in the dataset's order; there may be none."""
        drawn, self._states = draw_pass(self._states, number, self._config, waiting=waiting)
        return drawn

    def metrics(self) -> dict[str, float]:
        """Return the numbers of resting and unmeasured tasks, and the mean weight of those not resting."""
        rates = [state.rate for state in self._states.values()]
        weights = [state.weight(self._config.min_weight) for state in self._states.values()]
        active = [weight for weight in weights if weight]
        return {
            "curriculum/resting_none": float(rates.count(0.0)),
            "curriculum/resting_all": float(rates.count(1.0)),
            "curriculum/unmeasured": float(rates.count(None)),
            "curriculum/weight_mean": sum(active) / len(active) if active else 0.0,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON."""
        return {
            "iterations": self._iterations,
            "outcomes": [[batch, [[*row] for row in rows]] for batch, rows in self._outcomes.items()],
            "tasks": {task_id: asdict(state) for task_id, state in self._states.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state; tasks that it lacks keep theirs."""
        self._iterations = state["iterations"]
        self._outcomes = {batch: [GroupOutcome(*row) for row in rows] for batch, rows in state["outcomes"]}
        for task_id, saved in state["tasks"].items():
            if task_id in self._states:
                groups = tuple((solved, graded) for solved, graded in saved["groups"])
                self._states[task_id] = TaskState(credit=saved["credit"], groups=groups, drawn=saved["drawn"])
