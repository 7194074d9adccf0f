"""Weights of trajectories in an optimizer step.

    loss = Σ_i w_i Σ_t ℓ_it

    constant_length   w_i = 1 / (L · N)         (Dr. GRPO: arXiv:2503.20783)
    token_mean        w_i = 1 / Σ_i |i|         (DAPO: arXiv:2503.14476)
    sequence_mean     w_i = 1 / (|i| · N)       (GRPO: arXiv:2402.03300)
    token_sum         w_i = 1

L is ``normalisation_length`` or the agent's ``max_context``; |i| counts the sampled tokens of i; N and
Σ_i |i| run over ``denominator``'s trajectories of the *whole* optimizer step (``all``: filtered ones too;
``kept``: only those that carry loss; never those lost to infrastructure, nor those of groups dropped for lack
of signal). Because w_i is known before the step is cut, every microbatch and rank contributes a plain sum.

To add an aggregation: a name in ``AlgorithmConfig.aggregation`` and a branch of ``trajectory_weights``.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.algorithms.advantages import Member
from engine.algorithms.terms import has_kl_loss, needs_entropy
from engine.config.learning.algorithm import AlgorithmConfig


def trajectory_weights(
    members: Sequence[Member], num_tokens: Sequence[int], config: AlgorithmConfig, *, max_context: int
) -> list[float]:
    """Return w_i of every trajectory of one optimizer step; 0 for those that carry no loss.

    Args:
        members: all trajectories of the step, over all its groups.
        num_tokens: sampled tokens of each.
        config: aggregation, normalisation length and denominator.
        max_context: the agent's limit, the default normalisation length.
    """
    counted = [_counts(member, config) for member in members]
    trajectories = sum(counted)
    tokens = sum(n for n, counts in zip(num_tokens, counted, strict=True) if counts)
    weights = []
    for member, length in zip(members, num_tokens, strict=True):
        if not member.loss_mask or not length:
            weights.append(0.0)
        elif config.aggregation == "constant_length":
            weights.append(1.0 / ((config.normalisation_length or max_context) * trajectories))
        elif config.aggregation == "token_mean":
            weights.append(1.0 / tokens)
        elif config.aggregation == "sequence_mean":
            weights.append(1.0 / (length * trajectories))
        else:
            weights.append(1.0)
    return weights


def _counts(member: Member, config: AlgorithmConfig) -> bool:
    if member.is_infrastructure or member.is_dropped_group:
        return False
    return member.loss_mask or config.denominator == "all"


def needs_forward(member: Member, config: AlgorithmConfig) -> bool:
    """Return whether a trajectory has a gradient: a signal, or a loss term that needs none."""
    return member.has_signal or (member.loss_mask and (has_kl_loss(config) or needs_entropy(config)))
