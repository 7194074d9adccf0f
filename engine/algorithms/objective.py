"""From advantages to the loss: the clipped token surrogate and its normalisation.

For the trajectories i of one optimizer step, with sampled tokens t and ρ_it = exp(log π(t) − log μ(t)),
μ being the policy that sampled them (its recorded log-probabilities):

    ℓ_it = min(ρ_it A_i, clip(ρ_it, 1 − ε_low, 1 + ε_high) A_i)    (PPO: arXiv:1707.06347;
                                                                   clip-higher: DAPO, arXiv:2503.14476)
    loss = − Σ_i w_i Σ_t ℓ_it

    constant_length   w_i = 1 / (L · N)         (Dr. GRPO: arXiv:2503.20783)
    token_mean        w_i = 1 / Σ_i |i|         (DAPO)
    sequence_mean     w_i = 1 / (|i| · N)       (GRPO)

L is ``normalisation_length`` or the agent's ``max_context``; |i| counts the sampled tokens of i; N and
Σ_i |i| run over ``denominator``'s trajectories of the *whole* optimizer step (``all``: filtered ones too;
``kept``: only those that carry loss; never those infrastructure lost). There is no KL and no entropy term.

ℓ is homogeneous in A for w ≥ 0, so w_i is multiplied into A_i before the step is cut into microbatches; what
remains is a plain sum, which no cut, order or padding changes.

To add an aggregation: a name in ``AlgorithmConfig.aggregation`` and a branch of ``trajectory_weights``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.algorithms.advantages import Member
from engine.config.training import AlgorithmConfig


def trajectory_weights(
    members: Sequence[Member], num_tokens: Sequence[int], config: AlgorithmConfig, *, max_context: int
) -> list[float]:
    """w_i of every trajectory of one optimizer step; 0 for those that carry no loss.

    Args:
        members: all trajectories of the step, over all its groups.
        num_tokens: sampled tokens of each.
        config: aggregation, normalisation length and denominator.
        max_context: the agent's limit, the default normalisation length.
    """
    counted = [
        not member.is_infrastructure and (member.loss_mask or config.denominator == "all")
        for member in members
    ]
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
        else:
            weights.append(1.0 / (length * trajectories))
    return weights


def token_surrogate(ratio: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float) -> Tensor:
    """min(ρA, clip(ρ, 1 − ε_low, 1 + ε_high)A) per token; all shapes [N]."""
    return torch.minimum(ratio * advantages, ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages)


def policy_loss(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """The loss of any part of an optimizer step; the parts' losses add up to the step's.

    Args:
        logprobs: log π of the sampled tokens, [N], at the sampling temperature.
        old_logprobs: what the sampler recorded, [N].
        advantages: w_i A_i, repeated for each token of its trajectory, [N].
        clip_low: ε_low.
        clip_high: ε_high.

    Returns:
        The loss (scalar) and ρ ([N], detached).
    """
    ratio = torch.exp(logprobs - old_logprobs)
    surrogate = token_surrogate(ratio, advantages, clip_low=clip_low, clip_high=clip_high)
    return -surrogate.sum(), ratio.detach()
