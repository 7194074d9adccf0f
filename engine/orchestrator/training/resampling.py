"""Dynamic sampling (DAPO, arXiv:2503.14476): groups whose rewards are all equal are replaced by fresh ones.

An iteration asks for as many new groups as it lacks, for at most ``max_resampling_rounds`` rounds or until
the split has no task left that the iteration has not tried. What it got by then is trained on; every other
group stays in the record, masked, and in the iteration's rollout metrics, which would otherwise flatter the
policy. Nothing here outlives an iteration, so an attempt that resumes draws the same groups again.

That is schedule ``sync``; ``buffer`` has the rule where groups are collected during updates.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from engine.algorithms.advantages import ZERO_ADVANTAGE, Member, group_members, is_informative
from engine.config.algorithm import AlgorithmConfig
from engine.orchestrator.training.curriculum import TaskCursor
from engine.types import Group, RolloutKey, TaskRow

Sample = Callable[[Sequence[TaskRow]], Awaitable[list[Group]]]
"""Function that rolls out a group of each task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """The groups of one iteration."""

    trained: list[Group]
    """Groups passed to the update."""
    discarded: list[Group] = field(default_factory=list)
    """Groups replaced by dynamic sampling."""
    rounds: int = 0
    """Number of requests for further groups."""

    @property
    def groups(self) -> list[Group]:
        """Return all sampled groups."""
        return [*self.trained, *self.discarded]

    def keys(self) -> list[RolloutKey]:
        """Return the keys of all rollouts."""
        return [trajectory.key for group in self.groups for trajectory in group.trajectories]

    def metrics(self) -> dict[str, float]:
        """Return metrics of the sampling effort spent on discarded groups."""
        return {
            "resampling/rounds": float(self.rounds),
            "resampling/discarded": float(len(self.discarded)),
        }


async def collect_informative(
    first: Sequence[TaskRow], cursor: TaskCursor, sample: Sample, config: AlgorithmConfig
) -> Collection:
    """Collect groups with a learning signal, of ``first``'s tasks or of further tasks in their place.

    Args:
        first: the iteration's tasks, already taken from ``cursor``.
        cursor: supplies further tasks.
        sample: rolls out a group of each given task.
        config: definition of a signal, and maximum number of rounds.
    """
    tried = [row.task.id for row in first]
    trained: list[Group] = []
    discarded: list[Group] = []
    rows: Sequence[TaskRow] = first
    rounds = 0
    while rows:
        for group in await sample(rows):
            (trained if is_informative(group.trajectories, config) else discarded).append(group)
        if len(trained) == len(first) or rounds == config.max_resampling_rounds:
            break
        rows = cursor.take(len(first) - len(trained), exclude=tried)
        tried += [row.task.id for row in rows]
        rounds += bool(rows)
    return Collection(trained=trained, discarded=discarded, rounds=rounds)


def discarded_members(group: Group, config: AlgorithmConfig, *, max_context: int) -> tuple[Member, ...]:
    """Return the record of a replaced group: its advantages, and no loss for any member."""
    return tuple(
        member if member.is_infrastructure else replace(member, loss_mask=False, mask_reason=ZERO_ADVANTAGE)
        for member in group_members(group.trajectories, config, max_context=max_context)
    )
