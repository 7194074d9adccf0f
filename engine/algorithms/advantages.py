"""Advantages from the rewards of an update's groups: filtering, reward terms, baseline, normalisation.

Pure functions of finished trajectories, without tensors, so that every rule can be read and checked by
hand. Notation: a group has n trajectories with rewards r_i; K are those that carry loss, F those that
compact filtering masks, X those lost to infrastructure, which count nowhere. The compared rewards are

    R_i = r_i − p · min(1, max(0, |i| − (L − B)) / B) − β Σ_t KL_it

with the soft overlong penalty p over the last B tokens of the context L (DAPO: arXiv:2503.14476, eq. 13; |i|
is the length of the whole conversation) and the KL term where it is part of the reward (RLOO, REINFORCE++);
both are off by default. The *counted* set S that baselines are computed over is

    drop               S = K
    keep_real_reward   S = K ∪ F, with the graded rewards
    keep_zero          S = K ∪ F, with R_i = 0 for i in F

and for i in S, with m = |S| and U the union of all groups' S:

    leave_one_out   b_i = Σ_{j∈S, j≠i} R_j / (m − 1)     (RLOO: Ahmadian et al. 2024, arXiv:2402.14740)
    group_mean      b_i = Σ_{j∈S} R_j / m                (GRPO: Shao et al. 2024, arXiv:2402.03300)
    batch_mean      b_i = Σ_{j∈U} R_j / |U|              (REINFORCE++: Hu et al. 2025, arXiv:2501.03262)
    none            b_i = 0                              (REINFORCE)
    A_i = R_i − b_i, divided by s + 10⁻⁶ if std_normalisation requires it:
    group           s = √(Σ_{j∈S} (R_j − R̄)² / (m − 1))
    batch           s = √(Σ_{j∈U} (R_j − R̄)² / (|U| − 1))

A_i is exactly 0 where all rewards of its baseline are equal, and s is left out where all of its rewards are.
To add a baseline: a name in ``AlgorithmConfig.baseline`` and a branch of ``_baselines``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.algorithms.terms import has_kl_reward
from engine.config.learning.algorithm import AlgorithmConfig
from engine.types import INFRASTRUCTURE_REASONS, Group, TerminationReason, Trajectory

INFRASTRUCTURE = "infrastructure"
"""``Member.mask_reason`` of a trajectory lost to an infrastructure failure."""
ZERO_ADVANTAGE = "zero_advantage"
"""``Member.mask_reason`` of the graded trajectories of a group dropped for lack of signal."""

STD_EPSILON = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryOutcome:
    """The part of a finished trajectory that the objective depends on."""

    index: int
    """Position among the siblings of its group."""
    reward: float | None
    """Reward from grading; None after an infrastructure failure."""
    termination: TerminationReason
    length: int = 0
    """Tokens of the whole conversation; of the longest prompt and response if it was rendered anew."""
    kl: float = 0.0
    """Σ_t KL_it, where the KL term is part of the reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Advantage, baseline and mask of one trajectory, the fields of the event's ``GroupMember``."""

    index: int
    advantage: float | None
    """None when infrastructure failed or the trajectory was dropped from its group."""
    baseline: float | None
    """None where there is no advantage, and for a leave-one-out baseline without another sibling."""
    loss_mask: bool
    mask_reason: str = ""
    """Why it carries no loss: a termination reason, ``infrastructure`` or ``zero_advantage``; empty when it
    does."""

    @property
    def is_infrastructure(self) -> bool:
        """Return whether the trajectory was lost to infrastructure and is excluded everywhere."""
        return self.mask_reason == INFRASTRUCTURE

    @property
    def is_dropped_group(self) -> bool:
        """Return whether its group was dropped for lack of signal; it counts in no denominator."""
        return self.mask_reason == ZERO_ADVANTAGE

    @property
    def has_signal(self) -> bool:
        """Return whether it carries loss with a non-zero advantage."""
        return self.loss_mask and bool(self.advantage)


def outcome_of(trajectory: Trajectory, *, kl: float = 0.0) -> TrajectoryOutcome:
    """Return the part of a trajectory that the objective depends on."""
    return TrajectoryOutcome(
        index=trajectory.key.index,
        reward=trajectory.reward,
        termination=trajectory.termination,
        length=max(map(len, trajectory.tokens.samples()), default=0),
        kl=kl,
    )


def step_members(
    groups: Sequence[Group],
    config: AlgorithmConfig,
    *,
    max_context: int,
    kl_sums: Sequence[Sequence[float]] | None = None,
) -> list[tuple[Member, ...]]:
    """Compute the advantages of all groups of one update, in their order.

    Args:
        groups: every group of the update: batch-wide baselines and deviations run over all of them.
        config: the objective.
        max_context: the agent's limit in tokens, which the overlong penalty counts back from.
        kl_sums: Σ_t KL_it of every trajectory (``objective.kl_estimate``), needed when KL is in the reward.

    Raises:
        ValueError: KL is part of the reward and ``kl_sums`` is missing or of other groups.
    """
    if kl_sums is None:
        if has_kl_reward(config):
            raise ValueError("algorithm.kl_placement is 'reward': step_members needs kl_sums")
        kl_sums = [[0.0] * len(group.trajectories) for group in groups]
    outcomes = [
        [outcome_of(trajectory, kl=kl) for trajectory, kl in zip(group.trajectories, sums, strict=True)]
        for group, sums in zip(groups, kl_sums, strict=True)
    ]
    return outcome_members(outcomes, config, max_context=max_context)


def group_members(
    trajectories: Sequence[Trajectory], config: AlgorithmConfig, *, max_context: int
) -> tuple[Member, ...]:
    """Compute ``step_members`` for a single group, without KL in the reward."""
    outcomes = [outcome_of(trajectory) for trajectory in trajectories]
    return outcome_members([outcomes], config, max_context=max_context)[0]


def outcome_members(
    groups: Sequence[Sequence[TrajectoryOutcome]], config: AlgorithmConfig, *, max_context: int
) -> list[tuple[Member, ...]]:
    """Compute ``step_members`` from trajectory outcomes."""
    rewards = [counted_rewards(group, config, max_context=max_context) for group in groups]
    union = [reward for counted in rewards for reward in counted.values()]
    return [
        _members(group, _advantages(counted, union, config), config)
        for group, counted in zip(groups, rewards, strict=True)
    ]


def counted_rewards(
    group: Sequence[TrajectoryOutcome], config: AlgorithmConfig, *, max_context: int
) -> dict[int, float]:
    """Return R_i of the counted set S of a group, by index in ``group``."""
    rewards: dict[int, float] = {}
    for position, outcome in enumerate(group):
        reason = mask_reason(outcome, config)
        if reason == INFRASTRUCTURE or (reason and config.filtered_baseline == "drop"):
            continue
        if reason and config.filtered_baseline == "keep_zero":
            rewards[position] = 0.0
            continue
        reward = float(outcome.reward or 0.0) - _overlong(outcome.length, config, max_context)
        if has_kl_reward(config):
            reward -= config.kl_coefficient * outcome.kl
        rewards[position] = reward
    return rewards


def mask_reason(outcome: TrajectoryOutcome, config: AlgorithmConfig) -> str:
    """Return the reason why a trajectory by itself carries no loss; empty when it does."""
    if outcome.termination in INFRASTRUCTURE_REASONS or outcome.reward is None:
        return INFRASTRUCTURE
    return outcome.termination.value if outcome.termination in config.filtered_reasons else ""


def is_informative(trajectories: Sequence[Trajectory], config: AlgorithmConfig) -> bool:
    """Return whether a group has a signal: some trajectory carries loss and the compared rewards differ.

    Dynamic sampling keeps such groups. Graded rewards are compared, before penalties.
    """
    plain = config.model_copy(update={"overlong_buffer": 0.0})
    outcomes = [outcome_of(trajectory) for trajectory in trajectories]
    carries = any(not mask_reason(outcome, config) for outcome in outcomes)
    return carries and len(set(counted_rewards(outcomes, plain, max_context=0).values())) > 1


def _overlong(length: int, config: AlgorithmConfig, max_context: int) -> float:
    """Return the overlong penalty of a trajectory's length."""
    if not config.overlong_buffer:
        return 0.0
    buffer = config.overlong_buffer * (max_context if config.overlong_buffer < 1 else 1)
    excess = length - (max_context - buffer)
    return config.overlong_penalty * min(1.0, max(0.0, excess / buffer))


def _advantages(
    rewards: dict[int, float], union: Sequence[float], config: AlgorithmConfig
) -> dict[int, tuple[float, float | None]]:
    """Return (A_i, b_i) of the counted rewards of one group, by index."""
    own = list(rewards.values())
    compared = union if config.baseline == "batch_mean" else own
    measured = union if config.std_normalisation == "batch" else own
    scale = 1.0
    if config.std_normalisation != "none" and len(set(measured)) > 1:
        scale = statistics.stdev(measured) + STD_EPSILON
    # Equal rewards are no signal: the exact 0 keeps a rounded mean from leaving a spurious one.
    silent = config.baseline != "none" and len(set(compared)) < 2
    baselines = _baselines(own, compared, config)
    return {
        position: (0.0 if b is None or silent else (reward - b) / scale, b)
        for (position, reward), b in zip(rewards.items(), baselines, strict=True)
    }


def _baselines(
    own: Sequence[float], compared: Sequence[float], config: AlgorithmConfig
) -> list[float | None]:
    if config.baseline == "none":
        return [0.0] * len(own)
    total = math.fsum(compared)
    if config.baseline != "leave_one_out":
        return [total / len(compared)] * len(own) if own else []
    if len(own) < 2:
        return [None] * len(own)
    return [(total - reward) / (len(own) - 1) for reward in own]


def _members(
    group: Sequence[TrajectoryOutcome], scored: dict[int, tuple[float, float | None]], config: AlgorithmConfig
) -> tuple[Member, ...]:
    members = []
    for position, outcome in enumerate(group):
        reason = mask_reason(outcome, config)
        advantage, baseline = scored.get(position, (None, None))
        members.append(
            Member(
                index=outcome.index,
                advantage=advantage,
                baseline=baseline,
                loss_mask=not reason,
                mask_reason=reason,
            )
        )
    if config.zero_advantage_groups == "drop" and not any(member.has_signal for member in members):
        members = [
            member
            if member.is_infrastructure
            else replace(member, loss_mask=False, mask_reason=ZERO_ADVANTAGE)
            for member in members
        ]
    return tuple(members)
