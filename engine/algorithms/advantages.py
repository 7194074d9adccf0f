"""From the rewards of one group to advantages: compact filtering, baseline, normalisation.

Pure functions of finished trajectories, without tensors, so that every rule can be read and checked by
hand. Notation: the group has n trajectories with rewards r_i; K are those that carry loss, F those that
compact filtering masks, X those that infrastructure lost. X is in nothing. The *counted* set S that
baselines are computed over is

    drop               S = K
    keep_real_reward   S = K ∪ F, with the rewards grading gave
    keep_zero          S = K ∪ F, with r_i = 0 for i in F

and for i in S, with m = |S|:

    leave_one_out   b_i = Σ_{j∈S, j≠i} r_j / (m − 1)     (RLOO: Ahmadian et al. 2024, arXiv:2402.14740)
    group_mean      b_i = Σ_{j∈S} r_j / m                (GRPO: Shao et al. 2024, arXiv:2402.03300)
    none            b_i = 0                              (REINFORCE)
    A_i = r_i − b_i, and with std_normalisation = group: A_i / (s + 10⁻⁶), s = √(Σ(r_j − r̄)² / (m − 1))

To add a baseline: a name in ``AlgorithmConfig.baseline`` and an entry of ``_BASELINES``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.config.training import AlgorithmConfig
from engine.types import INFRASTRUCTURE_REASONS, Trajectory

INFRASTRUCTURE = "infrastructure"
"""``Member.mask_reason`` of a trajectory that infrastructure lost."""

STD_EPSILON = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What the objective makes of one trajectory of a group; field for field the event's ``GroupMember``."""

    index: int
    advantage: float | None
    """None when infrastructure failed or the trajectory was dropped from its group."""
    baseline: float | None
    """None where there is no advantage, and for a leave-one-out baseline with nobody left to average."""
    loss_mask: bool
    mask_reason: str = ""
    """Why it carries no loss: a termination reason or ``infrastructure``; empty when it does."""

    @property
    def is_infrastructure(self) -> bool:
        """Infrastructure lost it: it counts nowhere."""
        return self.mask_reason == INFRASTRUCTURE

    @property
    def has_signal(self) -> bool:
        """It carries loss and its advantage is not zero: it moves the weights."""
        return self.loss_mask and bool(self.advantage)


def group_members(trajectories: Sequence[Trajectory], config: AlgorithmConfig) -> tuple[Member, ...]:
    """Advantages of one group's trajectories, in their order.

    A trajectory is infrastructure's when its termination reason says so or when it has no reward. Groups
    whose counted rewards are all equal get advantages of exactly 0 under both centred baselines, and so does
    a counted trajectory left alone.
    """
    reasons = [_mask_reason(trajectory, config) for trajectory in trajectories]
    rewards: dict[int, float] = {}
    for i, (trajectory, reason) in enumerate(zip(trajectories, reasons, strict=True)):
        if reason == INFRASTRUCTURE or (reason and config.filtered_baseline == "drop"):
            continue
        zeroed = reason and config.filtered_baseline == "keep_zero"
        rewards[i] = 0.0 if zeroed else float(trajectory.reward or 0.0)
    scored = dict(zip(rewards, advantages(list(rewards.values()), config), strict=True))
    members = []
    for i, (trajectory, reason) in enumerate(zip(trajectories, reasons, strict=True)):
        advantage, baseline = scored.get(i, (None, None))
        members.append(
            Member(
                index=trajectory.key.index,
                advantage=advantage,
                baseline=baseline,
                loss_mask=not reason,
                mask_reason=reason,
            )
        )
    return tuple(members)


def _mask_reason(trajectory: Trajectory, config: AlgorithmConfig) -> str:
    if trajectory.termination in INFRASTRUCTURE_REASONS or trajectory.reward is None:
        return INFRASTRUCTURE
    return trajectory.termination.value if trajectory.termination in config.filtered_reasons else ""


def advantages(rewards: Sequence[float], config: AlgorithmConfig) -> list[tuple[float, float | None]]:
    """(A_i, b_i) of the counted rewards of one group."""
    uniform = len(set(rewards)) < 2
    baselines = _BASELINES[config.baseline](rewards)
    scale = 1.0
    if config.std_normalisation == "group" and not uniform:
        scale = statistics.stdev(rewards) + STD_EPSILON
    # Equal rewards are no signal: the exact 0 keeps a rounded mean from leaving a spurious one.
    centred = config.baseline != "none"
    return [
        (0.0 if b is None or (uniform and centred) else (r - b) / scale, b)
        for r, b in zip(rewards, baselines, strict=True)
    ]


def _leave_one_out(rewards: Sequence[float]) -> list[float | None]:
    if len(rewards) < 2:
        return [None] * len(rewards)
    total = math.fsum(rewards)
    return [(total - reward) / (len(rewards) - 1) for reward in rewards]


def _group_mean(rewards: Sequence[float]) -> list[float | None]:
    return [math.fsum(rewards) / len(rewards)] * len(rewards) if rewards else []


def _no_baseline(rewards: Sequence[float]) -> list[float | None]:
    return [0.0] * len(rewards)


_BASELINES: dict[str, Callable[[Sequence[float]], list[float | None]]] = {
    "leave_one_out": _leave_one_out,
    "group_mean": _group_mean,
    "none": _no_baseline,
}
