"""Token traces of trained trajectories, with the arithmetic of their losses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.algorithms.arithmetic import SampledTokens, TokenTerms, token_terms
from engine.config.learning.algorithm import AlgorithmConfig
from engine.events.token_trace import TraceRecord
from engine.tokens import TokenRecord
from webapp.rollouts.models.trajectories import TokenBlob, TokenTrace, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedTokens:
    """The sampled tokens of a trained trajectory, with the terms of their losses."""

    trace: TokenTrace
    tokens: TokenRecord
    positions: tuple[int, ...]
    """Index in ``tokens`` of each sampled token."""
    record: TraceRecord
    advantage: float
    sampled: SampledTokens
    entropies: tuple[float, ...]
    terms: tuple[TokenTerms, ...]

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def scale(self) -> float:
        """Return the factor from a token's loss to its part of ``loss/value``: w ÷ number of steps."""
        return self.trace.weight / len(self.trace.losses)

    def step_of(self, token: int) -> int:
        """Return the step that sampled a token."""
        return int(self.tokens.steps[self.positions[token]])

    def text(self, token: int) -> str:
        """Return the text of a token; its id in brackets where it is unknown."""
        number = int(self.tokens.ids[self.positions[token]])
        return self.record.texts.get(number, f"[{number}]")


def traced_tokens(trajectory: Trajectory, algorithm: AlgorithmConfig | None) -> TracedTokens | None:
    """Return the traced tokens of a trajectory; None where there are none, or they do not fit together."""
    trace = TokenTrace.objects.filter(pk=trajectory.pk).first()
    blob = TokenBlob.objects.filter(pk=trajectory.pk).first()
    if trace is None or blob is None or algorithm is None or trajectory.advantage is None:
        return None
    tokens, record = blob.record, trace.record
    positions = np.flatnonzero(tokens.mask)
    if len(positions) != len(record) or trace.step >= len(trace.losses):
        return None  # another program's
    sampler = tokens.logprobs[positions].astype(float).tolist()
    old, reference = record.old_logprobs, record.reference_logprobs
    entropies = tuple(record.entropies.astype(float).tolist())
    sampled = SampledTokens(
        logprobs=record.logprobs.astype(float).tolist(),
        old_logprobs=sampler if old is None else old.astype(float).tolist(),
        sampler_logprobs=sampler,
        reference_logprobs=None if reference is None else reference.astype(float).tolist(),
        entropies=entropies,
    )
    try:
        terms = token_terms(sampled, trajectory.advantage, algorithm)
    except OverflowError:
        return None
    return TracedTokens(
        trace=trace,
        tokens=tokens,
        positions=tuple(positions.tolist()),
        record=record,
        advantage=trajectory.advantage,
        sampled=sampled,
        entropies=entropies,
        terms=tuple(terms),
    )
