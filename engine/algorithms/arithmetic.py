"""The loss of ``engine.algorithms.objective`` in float64 and plain Python, token by token.

It explains one group without loading tensors. The equations are in ``objective``'s docstring; tests compare
both to 10⁻¹². To add a ratio or a correction: a branch here and there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

from engine.algorithms.terms import has_kl_loss, needs_entropy
from engine.config.learning.algorithm import AlgorithmConfig

Clip = Literal["", "high", "low", "dual"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTokens:
    """The sampled tokens of a trajectory, or of one of its samples; all columns have the same length."""

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

    def split(self, counts: Iterable[int]) -> Iterator[SampledTokens]:
        """Yield the tokens of each sample, given their numbers, which add up to all tokens."""
        end = 0
        for count in counts:
            start, end = end, end + count
            columns: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
            yield SampledTokens(**{name: column and column[start:end] for name, column in columns.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTerms:
    """Factors and terms of one token's loss, c ℓ + β KL − γ H, and of its gradient."""

    ratio: float
    """ρ, before any clip."""
    clip: Clip
    """Bound that took effect; empty where none did."""
    surrogate: float
    """ℓ."""
    correction: float
    """c."""
    kl: float
    """β KL."""
    entropy: float
    """− γ H."""
    surrogate_slope: float
    """Derivative of c ℓ with respect to log π of the token; with a ratio per sequence, that of the sum."""
    kl_slope: float
    """Derivative of β KL with respect to log π of the token."""

    @property
    def slope(self) -> float:
        """Return the derivative of the loss with respect to log π of the token, entropy term excluded."""
        return self.surrogate_slope + self.kl_slope

    @property
    def loss(self) -> float:
        """Return the token's loss, before the trajectory's weight."""
        return self.correction * self.surrogate + self.kl + self.entropy + 0.0  # −0.0 becomes 0.0


def token_terms(tokens: SampledTokens, advantage: float, config: AlgorithmConfig) -> list[TokenTerms]:
    """Return the terms of every token's loss, before the trajectory's weight.

    Args:
        tokens: one sample; ``SampledTokens.split`` cuts the tokens of a trajectory with forks.
        advantage: A of its trajectory.
        config: the objective.

    Raises:
        OverflowError: a ratio is too large for a float.
    """
    count = len(tokens.logprobs)
    kls, kl_slopes, entropies = [0.0] * count, [0.0] * count, [0.0] * count
    if has_kl_loss(config) and tokens.reference_logprobs is not None:
        columns = tokens.logprobs, tokens.reference_logprobs, config.kl
        kls = [config.kl_coefficient * kl for kl in kl_estimates(*columns)]
        kl_slopes = [config.kl_coefficient * slope for slope in _kl_slopes(*columns)]
    if needs_entropy(config) and tokens.entropies is not None:
        entropies = [-config.entropy_coefficient * entropy for entropy in tokens.entropies]
    corrections = _corrections(tokens, config)
    surrogates = [
        _surrogate(ratio, logprob, advantage, config)
        for ratio, logprob in zip(_ratios(tokens, config), tokens.logprobs, strict=True)
    ]
    slopes = [c * part.slope for c, part in zip(corrections, surrogates, strict=True)]
    if config.ratio == "sequence" and count:
        slopes = [math.fsum(slopes) / count] * count
    return [
        TokenTerms(
            ratio=part.ratio,
            clip=part.clip,
            surrogate=part.loss,
            correction=corrections[token],
            kl=kls[token],
            entropy=entropies[token],
            surrogate_slope=slopes[token],
            kl_slope=kl_slopes[token],
        )
        for token, part in enumerate(surrogates)
    ]


def token_losses(tokens: SampledTokens, advantage: float, config: AlgorithmConfig) -> list[float]:
    """Return c ℓ + β KL − γ H of every token, before the trajectory's weight.

    Raises:
        OverflowError: a ratio is too large for a float.
    """
    return [terms.loss for terms in token_terms(tokens, advantage, config)]


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


def _kl_slopes(logprobs: Sequence[float], reference_logprobs: Sequence[float], kind: str) -> list[float]:
    """Return the derivative of every token's KL term with respect to its log π."""
    gaps = [reference - logprob for logprob, reference in zip(logprobs, reference_logprobs, strict=True)]
    if kind == "k1":
        return [1.0] * len(gaps)
    return [-gap if kind == "k2" else 1.0 - math.exp(gap) for gap in gaps]


class _Surrogate(NamedTuple):
    ratio: float
    loss: float
    """ℓ."""
    slope: float
    """Its derivative with respect to log π."""
    clip: Clip


def _surrogate(ratio: float, logprob: float, advantage: float, config: AlgorithmConfig) -> _Surrogate:
    if config.ratio == "none":
        return _Surrogate(ratio, -advantage * logprob, -advantage, "")
    low, high = 1.0 - config.clip_low, 1.0 + config.clip_high
    clipped = min(max(ratio, low), high)
    if config.ratio == "cispo":
        weight = clipped * advantage
        bound: Clip = "high" if ratio > high else "low" if ratio < low else ""
        return _Surrogate(ratio, -weight * logprob, -weight, bound)
    surrogate = min(ratio * advantage, clipped * advantage)
    if config.dual_clip is not None and advantage < 0 and surrogate < config.dual_clip * advantage:
        return _Surrogate(ratio, -config.dual_clip * advantage, 0.0, "dual")
    if ratio > high and advantage > 0:
        return _Surrogate(ratio, -surrogate, 0.0, "high")
    if ratio < low and advantage < 0:
        return _Surrogate(ratio, -surrogate, 0.0, "low")
    return _Surrogate(ratio, -surrogate, -ratio * advantage, "")
