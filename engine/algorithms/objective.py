"""The loss of any part of an optimizer step; the losses of all parts add up to that of the step.

For the samples i of one optimizer step, with sampled tokens t (a trajectory is one sample, and one more for
every fork, all with its advantage and weight):

    ρ_it = exp(log π(t) − log π_old(t))     token        (PPO: Schulman et al. 2017, arXiv:1707.06347)
    ρ_it = exp(mean_t log π/π_old)          sequence     (GSPO: Zheng et al. 2025, arXiv:2507.18071)

    ℓ_it = − min(ρ A, clip(ρ, 1 − ε_low, 1 + ε_high) A)  (clip-higher: DAPO, arXiv:2503.14476)
           − max(min(ρ A, clip(ρ) A), c A) where A < 0   (dual clip: Ye et al. 2019, arXiv:1912.09729)
    ℓ_it = − sg(clip(ρ, 1 − ε_low, 1 + ε_high)) A log π   cispo (MiniMax-M1, arXiv:2506.13585)
    ℓ_it = − A log π                                     none (REINFORCE: Williams 1992)

    loss = Σ_i w_i Σ_t ( c_it ℓ_it + β KL_it − γ H_it )

π_old is the sampler μ itself, unless an importance correction separates the two: then π_old are the trainer's
weights before the update, and with k = π_old/μ, bounds a and b, and no gradient

    none            c = 1
    token_tis       c = min(max(k, a), b)                (Yao et al. 2025, fengyao.notion.site/off-policy-rl)
    icepop          c = k where a ≤ k ≤ b, else 0        (IcePop: Ling team 2025, arXiv:2510.18855)
    sequence_mask   c = 1 where a ≤ exp(mean_t log k) ≤ b over the sample, else 0

Without bounds (a = 0, b = ∞) token_tis is the decoupled PPO of asynchronous training, with π_old as its
proximal policy (AReaL: Fu et al. 2025, arXiv:2505.24298, eq. 5). The mean over a sample is geometric: a
product over 10⁴ tokens leaves any band. KL is estimated from the sampled tokens (Schulman 2020,
joschu.net/blog/kl-approx), with d = log π_ref − log π:

    k1 = − d      k2 = d² / 2      k3 = exp(d) − d − 1

The weights w_i are ``engine.algorithms.weights``'. ``engine.algorithms.arithmetic`` states the same rules
without tensors. To add a ratio or a correction: a name in ``AlgorithmConfig`` and a branch here and there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from engine.algorithms.terms import has_kl_loss, needs_entropy
from engine.config.learning.algorithm import AlgorithmConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """Sampled tokens of whole samples of one microbatch, flattened: N tokens of S samples."""

    logprobs: Tensor
    """float [N], with gradient: log π at the sampling temperature."""
    sampler_logprobs: Tensor
    """float [N]: log μ as the sampler recorded it."""
    old_logprobs: Tensor
    """float [N]: log π_old; ``sampler_logprobs`` itself unless ``terms.needs_old_logprobs``."""
    reference_logprobs: Tensor | None
    """float [N]: log π_ref, when KL is in the loss."""
    entropies: Tensor | None
    """float [N], with gradient, in nats, when there is an entropy term."""
    advantages: Tensor
    """float [N]: A_i, repeated for each token of its sample, not scaled."""
    weights: Tensor
    """float [N]: w_i of ``weights.trajectory_weights``, repeated likewise."""
    rows: Tensor
    """int64 [N]: index of a token's sample in the microbatch, 0 … S − 1."""
    num_rows: int
    """S."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossParts:
    """The loss and the inputs of metrics; everything but ``loss`` is detached and [N]."""

    loss: Tensor
    """Scalar, with gradient: Σ_i w_i Σ_t of ``token_losses``."""
    token_losses: Tensor
    """Before weighting: c ℓ + β KL − γ H."""
    ratio: Tensor
    """ρ, before any clip."""
    clipped_high: Tensor
    """bool: the upper bound took effect: cut the gradient off, or capped a CISPO weight."""
    clipped_low: Tensor
    """bool: likewise for the lower bound."""
    clipped_dual: Tensor
    """bool: the dual clip cut the gradient off."""
    masked: Tensor
    """bool: a clip cut the gradient of ℓ off, or the importance correction is 0."""
    correction: Tensor | None
    """c; None without an importance correction."""
    kl: Tensor | None
    """The KL estimate; None when it is not in the loss."""


def policy_loss(batch: TokenBatch, config: AlgorithmConfig) -> LossParts:
    """Compute the loss of some samples of an optimizer step.

    Raises:
        ValueError: the configuration has a term whose column the batch lacks.
    """
    ratio = _ratio(batch, config)
    losses, clipped_high, clipped_low, clipped_dual = _surrogate_losses(batch, ratio, config)
    clipped = clipped_high | clipped_low | clipped_dual
    masked = torch.zeros_like(clipped) if config.ratio == "cispo" else clipped
    correction = importance_weights(batch, config)
    if correction is not None:
        losses = losses * correction
        masked = masked | (correction == 0)
    kl = None
    if has_kl_loss(config):
        if batch.reference_logprobs is None:
            raise ValueError(f"algorithm.kl is {config.kl!r} in the loss: the batch needs reference_logprobs")
        kl = kl_estimate(batch.logprobs, batch.reference_logprobs, config.kl)
        losses = losses + config.kl_coefficient * kl
    if needs_entropy(config):
        if batch.entropies is None:
            raise ValueError("algorithm.entropy_coefficient is set: the batch needs entropies")
        losses = losses - config.entropy_coefficient * batch.entropies
    return LossParts(
        loss=(batch.weights * losses).sum(),
        token_losses=losses.detach(),
        ratio=ratio.detach(),
        clipped_high=clipped_high,
        clipped_low=clipped_low,
        clipped_dual=clipped_dual,
        masked=masked,
        correction=correction,
        kl=None if kl is None else kl.detach(),
    )


def kl_estimate(
    logprobs: Tensor, reference_logprobs: Tensor, kind: Literal["none", "k1", "k2", "k3"]
) -> Tensor:
    """Compute the KL term of every token, [N]. ``kind`` is not ``none``."""
    gap = reference_logprobs - logprobs
    if kind == "k1":
        return -gap
    if kind == "k2":
        return 0.5 * gap.square()
    assert kind == "k3", kind
    return gap.exp() - gap - 1.0


def importance_weights(batch: TokenBatch, config: AlgorithmConfig) -> Tensor | None:
    """Compute c of every token, [N], without gradient; None without an importance correction."""
    if config.importance_correction == "none":
        return None
    low, high = config.importance_low, config.importance_high
    gap = (batch.old_logprobs - batch.sampler_logprobs).detach()
    if config.importance_correction == "sequence_mask":
        return _inside(_row_means(gap, batch).exp(), low, high).to(gap.dtype)
    weights = gap.exp()
    if config.importance_correction == "icepop":
        return torch.where(_inside(weights, low, high), weights, 0.0)
    return weights.clamp(low, high)


def _ratio(batch: TokenBatch, config: AlgorithmConfig) -> Tensor:
    gap = batch.logprobs - batch.old_logprobs
    return (_row_means(gap, batch) if config.ratio == "sequence" else gap).exp()


def _row_means(values: Tensor, batch: TokenBatch) -> Tensor:
    """Return each token's mean over its sample, [N]."""
    counts = torch.bincount(batch.rows, minlength=batch.num_rows).clamp(min=1)
    sums = torch.zeros(batch.num_rows, dtype=values.dtype, device=values.device)
    return (sums.index_add(0, batch.rows, values) / counts)[batch.rows]


def _inside(values: Tensor, low: float, high: float) -> Tensor:
    return (values >= low) & (values <= high)


def _surrogate_losses(
    batch: TokenBatch, ratio: Tensor, config: AlgorithmConfig
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute ℓ of every token and the masks of the upper, lower and dual clip; all [N]."""
    advantages, detached = batch.advantages, ratio.detach()
    never = torch.zeros_like(detached, dtype=torch.bool)
    if config.ratio == "none":
        return -advantages * batch.logprobs, never, never, never
    low, high = 1.0 - config.clip_low, 1.0 + config.clip_high
    over, under = detached > high, detached < low
    if config.ratio == "cispo":
        return -detached.clamp(low, high) * advantages * batch.logprobs, over, under, never
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
    dual = never
    if config.dual_clip is not None:
        bound = config.dual_clip * advantages
        dual = (advantages < 0) & (surrogate < bound).detach()
        surrogate = torch.where(dual, bound, surrogate)
    return -surrogate, over & (advantages > 0), under & (advantages < 0), dual
