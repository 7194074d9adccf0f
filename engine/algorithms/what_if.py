"""Counterfactual advantages and masks of stored groups under other settings.

    what_if(group, {"preset": "grpo"}, max_context=32_768)
    what_if(group, {"filtered_baseline": "keep_zero"}, base=run.algorithm, max_context=run.agent.max_context)

Works on finished trajectories alone: no model and no tensors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.algorithms.advantages import Member, TrajectoryOutcome, outcome_members, outcome_of
from engine.algorithms.terms import has_kl_reward
from engine.algorithms.weights import needs_forward, trajectory_weights
from engine.config.learning.algorithm import AlgorithmConfig, parse_algorithm
from engine.types import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterfactual:
    """One group under other settings."""

    config: AlgorithmConfig
    """The settings, resolved."""
    members: tuple[Member, ...]
    """Advantage, baseline and mask of every trajectory, in the order given."""
    notes: tuple[str, ...]
    """Settings that could not be applied to stored trajectories, one sentence each."""


def what_if(
    group: Group | Sequence[TrajectoryOutcome],
    settings: AlgorithmConfig | Mapping[str, Any],
    *,
    max_context: int,
    base: AlgorithmConfig | None = None,
    others: Sequence[Group | Sequence[TrajectoryOutcome]] = (),
) -> Counterfactual:
    """Compute the advantages, baselines and masks of a group under other settings.

    Args:
        group: finished trajectories of one task.
        settings: an objective, or settings of ``algorithm`` that differ from ``base``.
        max_context: the agent's limit in tokens.
        base: the objective the settings change; None is the default preset.
        others: the other groups of the same update, which batch-wide settings compare with.

    Raises:
        ConfigError: a setting is unknown or has an impossible value.
    """
    config = settings if isinstance(settings, AlgorithmConfig) else parse_algorithm(dict(settings), base=base)
    groups = [_outcomes(group), *map(_outcomes, others)]
    members = outcome_members(groups, config, max_context=max_context)[0]
    return Counterfactual(config=config, members=members, notes=tuple(_notes(config, groups)))


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSignal:
    """Contribution of the trajectories of one update to its gradient."""

    groups: int
    uniform: int
    """Groups without any signal."""
    trajectories: int
    """Trajectories with a gradient: an advantage other than 0, or a loss term that needs none."""
    tokens: int
    """Their sampled tokens."""
    weights: tuple[float, ...]
    """Of each group, Σ_i w_i |A_i| |i| over its trajectories: the size of its gradient where no ratio is
    clipped. The whole update counts as one optimizer step."""


def update_signal(
    groups: Sequence[Sequence[TrajectoryOutcome]],
    num_tokens: Sequence[Sequence[int]],
    config: AlgorithmConfig,
    *,
    max_context: int,
) -> UpdateSignal:
    """Return what stored groups contribute to an update under an objective.

    Args:
        groups: all groups of the update.
        num_tokens: sampled tokens of each trajectory, in the same order.
        config: the objective.
        max_context: the agent's limit in tokens.
    """
    members = outcome_members(list(groups), config, max_context=max_context)
    flat = [member for siblings in members for member in siblings]
    lengths = [length for row in num_tokens for length in row]
    parts = iter(
        zip(flat, lengths, trajectory_weights(flat, lengths, config, max_context=max_context), strict=True)
    )
    trained = [length for member, length in zip(flat, lengths, strict=True) if needs_forward(member, config)]
    return UpdateSignal(
        groups=len(members),
        uniform=sum(not any(member.has_signal for member in siblings) for siblings in members),
        trajectories=len(trained),
        tokens=sum(trained),
        weights=tuple(
            math.fsum(
                weight * abs(member.advantage or 0.0) * length
                for member, length, weight in itertools.islice(parts, len(siblings))
            )
            for siblings in members
        ),
    )


def _outcomes(group: Group | Sequence[TrajectoryOutcome]) -> Sequence[TrajectoryOutcome]:
    return [outcome_of(t) for t in group.trajectories] if isinstance(group, Group) else group


def _notes(config: AlgorithmConfig, groups: Sequence[Sequence[TrajectoryOutcome]]) -> list[str]:
    notes = []
    outcomes = [outcome for group in groups for outcome in group]
    if has_kl_reward(config) and not any(outcome.kl for outcome in outcomes):
        notes.append(
            f"The {config.kl} penalty on the reward is left out: trajectories are stored without the "
            "reference policy's log-probabilities."
        )
    if "batch" in (config.baseline.removesuffix("_mean"), config.std_normalisation) and len(groups) == 1:
        notes.append("Batch-wide means and deviations are those of this group alone.")
    if config.overlong_buffer and not any(outcome.length for outcome in outcomes):
        notes.append("The overlong penalty is left out: trajectories are stored without their lengths.")
    return notes
