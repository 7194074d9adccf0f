"""The loss of ``engine.algorithms.objective`` in float64 and plain Python, token by token.

It explains one group without loading tensors. The equations are in ``objective``'s docstring; tests compare
both to 10⁻¹². To add a ratio or a correction: a branch here and there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from engine.algorithms.terms import has_kl_loss, needs_entropy
from engine.config.learning.algorithm import AlgorithmConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTokens:
    """The sampled tokens of one trajectory; all columns have the same length."""

    logprobs: Sequence[float]
    """log π."""
    old_logprobs: Sequence[float]
    """log π_old: the trainer's weights before the update, or the sampler's where these are the same."""
    sampler_logprobs: Sequence[float]
    """log μ."""
    reference_logprobs: Sequence[float] | None = None
    """log π_ref; None leaves the KL term out."""
    entropies: Sequence[float] | None = None
    """Nats; None leaves the entropy term out."""


def token_losses(tokens: SampledTokens, advantage: float, config: AlgorithmConfig) -> list[float]:
    """Return c ℓ + β KL − γ H of every token, before the trajectory's weight.

    Raises:
        OverflowError: a ratio is too large for a float.
    """
    losses = [
        c * _surrogate_loss(ratio, logprob, advantage, config)
        for c, ratio, logprob in zip(
            _corrections(tokens, config), _ratios(tokens, config), tokens.logprobs, strict=True
        )
    ]
    if has_kl_loss(config) and tokens.reference_logprobs is not None:
        terms = kl_estimates(tokens.logprobs, tokens.reference_logprobs, config.kl)
        losses = [loss + config.kl_coefficient * kl for loss, kl in zip(losses, terms, strict=True)]
    if needs_entropy(config) and tokens.entropies is not None:
        losses = [
            loss - config.entropy_coefficient * entropy
            for loss, entropy in zip(losses, tokens.entropies, strict=True)
        ]
    return [loss + 0.0 for loss in losses]  # −0.0 becomes 0.0


def kl_estimates(logprobs: Sequence[float], reference_logprobs: Sequence[float], kind: str) -> list[float]:
    """Return the KL term of every token; ``kind`` is k1, k2 or k3."""
    gaps = [reference - logprob for logprob, reference in zip(logprobs, reference_logprobs, strict=True)]
    if kind == "k1":
        return [-gap for gap in gaps]
    if kind == "k2":
        return [0.5 * gap * gap for gap in gaps]
    assert kind == "k3", kind
    return [math.exp(gap) - gap - 1.0 for gap in gaps]


def _ratios(tokens: SampledTokens, config: AlgorithmConfig) -> list[float]:
    gaps = [new - old for new, old in zip(tokens.logprobs, tokens.old_logprobs, strict=True)]
    if config.ratio == "sequence" and gaps:
        gaps = [math.fsum(gaps) / len(gaps)] * len(gaps)
    return [math.exp(gap) for gap in gaps]


def _corrections(tokens: SampledTokens, config: AlgorithmConfig) -> list[float]:
    gaps = [old - mu for old, mu in zip(tokens.old_logprobs, tokens.sampler_logprobs, strict=True)]
    if config.importance_correction == "none" or not gaps:
        return [1.0] * len(gaps)
    low, high = config.importance_low, config.importance_high
    if config.importance_correction == "sequence_mask":
        mean = math.exp(math.fsum(gaps) / len(gaps))
        return [1.0 if low <= mean <= high else 0.0] * len(gaps)
    weights = [math.exp(gap) for gap in gaps]
    if config.importance_correction == "icepop":
        return [weight if low <= weight <= high else 0.0 for weight in weights]
    return [min(max(weight, low), high) for weight in weights]


def _surrogate_loss(ratio: float, logprob: float, advantage: float, config: AlgorithmConfig) -> float:
    if config.ratio == "none":
        return -advantage * logprob
    clipped = min(max(ratio, 1.0 - config.clip_low), 1.0 + config.clip_high)
    if config.ratio == "cispo":
        return -clipped * advantage * logprob
    surrogate = min(ratio * advantage, clipped * advantage)
    if config.dual_clip is not None and advantage < 0:
        surrogate = max(surrogate, config.dual_clip * advantage)
    return -surrogate
