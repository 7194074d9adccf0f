"""Random batches and configurations of the objective, and the product's loss for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from engine.algorithms.advantages import Member, TrajectoryOutcome, outcome_members
from engine.algorithms.objective import LossParts, TokenBatch, kl_estimate, policy_loss
from engine.algorithms.terms import has_kl_loss, needs_entropy
from engine.algorithms.weights import trajectory_weights
from engine.config.learning.algorithm import AlgorithmConfig
from engine.types import TerminationReason
from tests.unit.algorithms.objective_reference import Row, Token

CONTEXT = 64
REASONS = {
    "kept": TerminationReason.SUBMITTED,
    "filtered": TerminationReason.MAX_STEPS,
    "lost": TerminationReason.ENV_ERROR,
}

configurations = st.fixed_dictionaries(
    {
        "baseline": st.sampled_from(["leave_one_out", "group_mean", "batch_mean", "none"]),
        "std_normalisation": st.sampled_from(["none", "group", "batch"]),
        "ratio": st.sampled_from(["token", "sequence", "cispo", "none"]),
        "clip_low": st.sampled_from([0.2, 0.1, 1.0]),
        "clip_high": st.sampled_from([0.28, 0.2, 1.5]),
        "dual_clip": st.sampled_from([None, 3.0, 1.25]),
        "aggregation": st.sampled_from(["constant_length", "token_mean", "sequence_mean", "token_sum"]),
        "normalisation_length": st.sampled_from([None, 40]),
        "kl": st.sampled_from(["none", "k1", "k2", "k3"]),
        "kl_placement": st.sampled_from(["loss", "reward"]),
        "kl_coefficient": st.sampled_from([0.0, 0.05]),
        "entropy_coefficient": st.sampled_from([0.0, 0.01]),
        "importance_correction": st.sampled_from(["none", "token_tis", "icepop", "sequence_mask"]),
        "importance_low": st.sampled_from([0.0, 0.75]),
        "importance_high": st.sampled_from([2.0, 1.25]),
        "filtered_baseline": st.sampled_from(["drop", "keep_real_reward", "keep_zero"]),
        "denominator": st.sampled_from(["all", "kept"]),
        "zero_advantage_groups": st.sampled_from(["keep", "drop"]),
        "overlong_buffer": st.sampled_from([0.0, 16.0, 0.5]),
        "overlong_penalty": st.sampled_from([1.0, 0.25]),
    }
)
"""Every setting of the objective except filtered reasons, which are part of the batch."""


def _token(code: int) -> Token:
    """Build a token from 32 bits; all numbers and their differences are exact in float32."""
    new = -(code & 127) * 3 / 64
    old = new - ((code >> 7 & 127) - 64) / 32
    sampler = old - ((code >> 14 & 63) - 32) / 32
    reference = new - ((code >> 20 & 127) - 64) / 32
    return Token(new, old, sampler, reference, (code >> 27 & 31) / 8)


@st.composite
def batches(draw: st.DrawFn) -> list[Row]:
    """Draw up to four groups of up to five trajectories of up to six tokens."""
    token = st.integers(0, 2**32 - 1).map(_token)
    reward = st.sampled_from([0.0, 1.0, 0.0, 1.0, 0.25])
    state = st.sampled_from(["kept", "kept", "kept", "filtered", "lost"])
    row = st.tuples(reward, state, st.integers(0, CONTEXT + 2), st.lists(token, max_size=6).map(tuple))
    groups = draw(st.lists(st.lists(row, min_size=1, max_size=5), min_size=1, max_size=4))
    return [Row(number, *fields) for number, group in enumerate(groups) for fields in group]


def sampled_without_correction(rows: Sequence[Row], choice: dict[str, Any]) -> list[Row]:
    """Return the batch with the sampler as π_old unless an importance correction is set."""
    if choice["importance_correction"] != "none":
        return list(rows)
    return [
        row._replace(tokens=tuple(token._replace(old=token.sampler) for token in row.tokens)) for row in rows
    ]


def members_of(rows: Sequence[Row], config: AlgorithmConfig) -> list[Member]:
    """Return the product's members of all rows, ordered by group."""
    groups: dict[int, list[TrajectoryOutcome]] = {}
    for row in rows:
        siblings = groups.setdefault(row.group, [])
        old = torch.tensor([token.old for token in row.tokens], dtype=torch.float64)
        reference = torch.tensor([token.reference for token in row.tokens], dtype=torch.float64)
        kl = math.fsum(kl_estimate(old, reference, config.kl).tolist()) if config.kl != "none" else 0.0
        outcome = TrajectoryOutcome(
            index=len(siblings), reward=row.reward, termination=REASONS[row.state], length=row.length, kl=kl
        )
        siblings.append(outcome)
    by_group = outcome_members(list(groups.values()), config, max_context=CONTEXT)
    return [member for members in by_group for member in members]


def weights_of(rows: Sequence[Row], members: Sequence[Member], config: AlgorithmConfig) -> list[float]:
    lengths = [len(row.tokens) for row in rows]
    return trajectory_weights(members, lengths, config, max_context=CONTEXT)


def token_batch(
    rows: Sequence[Row],
    members: Sequence[Member],
    weights: Sequence[float],
    config: AlgorithmConfig,
    dtype: torch.dtype,
) -> TokenBatch:
    """Return the trajectories with a weight as one microbatch with differentiable leaves."""
    weighted = [i for i, weight in enumerate(weights) if weight]
    lengths = torch.tensor([len(rows[i].tokens) for i in weighted], dtype=torch.int64)

    def column(name: str) -> Tensor:
        values = [getattr(token, name) for i in weighted for token in rows[i].tokens]
        return torch.tensor(values, dtype=dtype)

    def repeated(values: list[float]) -> Tensor:
        return torch.repeat_interleave(torch.tensor(values, dtype=dtype), lengths)

    return TokenBatch(
        logprobs=column("new").requires_grad_(),
        sampler_logprobs=column("sampler"),
        old_logprobs=column("old"),
        reference_logprobs=column("reference") if has_kl_loss(config) else None,
        entropies=column("entropy").requires_grad_() if needs_entropy(config) else None,
        advantages=repeated([members[i].advantage or 0.0 for i in weighted]),
        weights=repeated([weights[i] for i in weighted]),
        rows=torch.repeat_interleave(torch.arange(len(weighted)), lengths),
        num_rows=len(weighted),
    )


def product_loss(
    rows: Sequence[Row], config: AlgorithmConfig, dtype: torch.dtype
) -> tuple[LossParts, list[list[float]], list[list[float]]]:
    """Return the loss and its gradients by each row's log-probabilities and entropies."""
    members = members_of(rows, config)
    weights = weights_of(rows, members, config)
    batch = token_batch(rows, members, weights, config, dtype)
    parts = policy_loss(batch, config)
    parts.loss.backward()  # type: ignore[no-untyped-call]
    return (
        parts,
        _by_row(batch.logprobs.grad, rows, weights),
        _by_row(batch.entropies.grad if batch.entropies is not None else None, rows, weights),
    )


def _by_row(gradient: Tensor | None, rows: Sequence[Row], weights: Sequence[float]) -> list[list[float]]:
    flat = iter(gradient.tolist() if gradient is not None else [])
    return [
        [next(flat, 0.0) if weight else 0.0 for _ in row.tokens]
        for row, weight in zip(rows, weights, strict=True)
    ]
