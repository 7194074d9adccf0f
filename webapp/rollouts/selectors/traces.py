"""Token traces of trained trajectories, with the arithmetic of their losses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np

from engine.algorithms.arithmetic import SampledTokens, TokenTerms, token_terms
from engine.config.learning.algorithm import AlgorithmConfig
from engine.events.token_block import decode
from engine.events.token_trace import decode_trace
from engine.redaction import redact
from engine.tokens import TokenRecord
from webapp.rollouts.models.trajectories import TokenBlob, TokenTrace, Trajectory

_KEPT = 2
"""Trajectories whose arithmetic is kept: a page asks for one token after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenArithmetic:
    """The sampled tokens of a trajectory, with the terms of their losses."""

    tokens: TokenRecord
    positions: tuple[int, ...]
    """Index in ``tokens`` of each sampled token."""
    texts: tuple[str, ...]
    """Text of each; its id in brackets where it is unknown, everywhere if a secret would be readable."""
    sampled: SampledTokens
    entropies: tuple[float, ...]
    terms: tuple[TokenTerms, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedTokens(TokenArithmetic):
    """The same, as part of an update."""

    trace: TokenTrace
    advantage: float

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def scale(self) -> float:
        """Return the factor from a token's loss to its part of ``loss/value``: w ÷ number of steps."""
        return self.trace.weight / len(self.trace.losses)

    def step_of(self, token: int) -> int:
        """Return the step that sampled a token."""
        return int(self.tokens.steps[self.positions[token]])


def traced_tokens(trajectory: Trajectory, algorithm: AlgorithmConfig | None) -> TracedTokens | None:
    """Return the traced tokens of a trajectory; None where there are none, or they do not fit together."""
    trace = TokenTrace.objects.filter(pk=trajectory.pk).first()
    blob = TokenBlob.objects.filter(pk=trajectory.pk).first()
    if trace is None or blob is None or algorithm is None or trajectory.advantage is None:
        return None
    if trace.step >= len(trace.losses):
        return None  # another program's
    arithmetic = _compute(
        bytes(trace.data), bytes(blob.data), trajectory.advantage, algorithm.model_dump_json()
    )
    if arithmetic is None:
        return None
    parts = {part.name: getattr(arithmetic, part.name) for part in fields(arithmetic)}
    traced = TracedTokens(trace=trace, advantage=trajectory.advantage, **parts)
    sums = math.fsum(abs(terms.loss) + abs(terms.slope) for terms in arithmetic.terms)
    return traced if math.isfinite(sums * traced.scale) else None


@lru_cache(maxsize=_KEPT)
def _compute(trace: bytes, block: bytes, advantage: float, algorithm: str) -> TokenArithmetic | None:
    tokens, record = decode(block), decode_trace(trace)
    positions = np.flatnonzero(tokens.mask)
    counts = [sample.num_sampled for sample in tokens.samples()]
    if not len(positions) == len(record) == sum(counts):
        return None  # another program's
    sampler = tokens.logprobs[positions].astype(float).tolist()
    old, reference = record.old_logprobs, record.reference_logprobs
    sampled = SampledTokens(
        logprobs=record.logprobs.astype(float).tolist(),
        old_logprobs=sampler if old is None else old.astype(float).tolist(),
        sampler_logprobs=sampler,
        reference_logprobs=None if reference is None else reference.astype(float).tolist(),
        entropies=record.entropies.astype(float).tolist(),
    )
    config = AlgorithmConfig.model_validate_json(algorithm)
    try:
        terms = [term for part in sampled.split(counts) for term in token_terms(part, advantage, config)]
    except OverflowError:
        return None
    return TokenArithmetic(
        tokens=tokens,
        positions=tuple(positions.tolist()),
        texts=_texts(tokens.ids[positions].tolist(), record.texts),
        sampled=sampled,
        entropies=tuple(sampled.entropies or ()),
        terms=tuple(terms),
    )


def _texts(ids: list[int], known: Mapping[int, str]) -> tuple[str, ...]:
    texts = tuple(known.get(number, f"[{number}]") for number in ids)
    joined = "".join(texts)
    # A secret that the model repeated spans several tokens: none of their texts has it alone.
    return texts if redact(joined) == joined else tuple(f"[{number}]" for number in ids)
