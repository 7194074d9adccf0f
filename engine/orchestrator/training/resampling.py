"""Groups of an iteration, including those that dynamic sampling leaves out of its update (see ``buffer``).

Groups without a learning signal stay in the record, masked, and in the iteration's rollout metrics, which
would otherwise be biased.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from engine.algorithms.advantages import ZERO_ADVANTAGE, Member, group_members
from engine.config.learning.algorithm import AlgorithmConfig
from engine.types import Group, RolloutKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """The groups of one iteration."""

    trained: list[Group]
    """Groups passed to the update."""
    discarded: list[Group] = field(default_factory=list)
    """Groups without a learning signal: those replaced, and those for which there was no replacement."""
    rounds: int = 0
    """Number of requests for further groups, as in ``buffer.Batch``."""

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


def discarded_members(group: Group, config: AlgorithmConfig, *, max_context: int) -> tuple[Member, ...]:
    """Return the record of a replaced group: its advantages, and no loss for any member."""
    return tuple(
        member if member.is_infrastructure else replace(member, loss_mask=False, mask_reason=ZERO_ADVANTAGE)
        for member in group_members(group.trajectories, config, max_context=max_context)
    )
