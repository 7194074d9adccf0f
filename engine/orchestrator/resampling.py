"""Dynamic sampling (DAPO: arXiv:2503.14476): groups whose rewards are all equal are replaced by fresh ones.

An iteration asks for as many new groups as it lacks, for at most ``max_resampling_rounds`` rounds or until
the split has no task left that the iteration has not tried. What it got by then is trained on; every other
group stays in the record, masked, and in the iteration's rollout metrics, which would otherwise flatter the
policy. Nothing here outlives an iteration, so an attempt that resumes draws the same groups again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from engine.algorithms.advantages import ZERO_ADVANTAGE, Member, group_members, is_informative
from engine.config.algorithm import AlgorithmConfig
from engine.orchestrator.curriculum import TaskCursor
from engine.types import Group, TaskRow

Sample = Callable[[Sequence[TaskRow]], Awaitable[list[Group]]]
"""Rolls out a group of each task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """The groups of one iteration."""

    trained: list[Group]
    """What the update gets."""
    discarded: list[Group] = field(default_factory=list)
    """What dynamic sampling replaced."""
    rounds: int = 0
    """How often it asked for more."""

    @property
    def groups(self) -> list[Group]:
        """Everything that was sampled."""
        return [*self.trained, *self.discarded]

    def metrics(self) -> dict[str, float]:
        """How much was sampled for nothing."""
        return {
            "resampling/rounds": float(self.rounds),
            "resampling/discarded": float(len(self.discarded)),
        }


async def collect_informative(
    first: Sequence[TaskRow], cursor: TaskCursor, sample: Sample, config: AlgorithmConfig
) -> Collection:
    """Groups of ``first``'s tasks, or of others instead of them, that can teach something.

    Args:
        first: the iteration's tasks, already taken from ``cursor``.
        cursor: gives further tasks.
        sample: rolls out a group of each task it is given.
        config: what counts as a signal, and how many rounds.
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
    """What the record says of a group that was replaced: its advantages, and no loss for anyone."""
    return tuple(
        member if member.is_infrastructure else replace(member, loss_mask=False, mask_reason=ZERO_ADVANTAGE)
        for member in group_members(group.trajectories, config, max_context=max_context)
    )
