"""From graded groups to tensors: which trajectories are forwarded, and in which padded microbatches.

Only trajectories with a signal become samples: one whose advantage is zero has a zero gradient and needs no
forward pass (it still counts in the normaliser). Ids, masks and log-probabilities are the sampler's own;
nothing is tokenised here. How samples are cut into microbatches never changes an update, only its speed.
To train on something new about a token: a column in ``Sample`` and ``Microbatch``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.algorithms.advantages import Member
from engine.algorithms.weights import trajectory_weights
from engine.config.algorithm import AlgorithmConfig
from engine.types import Group, TokenRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One trajectory to learn from."""

    ids: tuple[int, ...]
    """Model input, T tokens: up to but without the last sampled token, which is only predicted."""
    positions: tuple[int, ...]
    """Input positions whose output predicts a sampled token, N of them, increasing."""
    targets: tuple[int, ...]
    """The N sampled tokens."""
    old_logprobs: tuple[float, ...]
    """What the sampler recorded for them."""
    advantage: float
    """w_i A_i of ``engine.algorithms.objective``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Microbatch:
    """Right-padded samples of one forward pass; B samples, T positions, N sampled tokens in all."""

    ids: Tensor
    """int64 [B, T]."""
    rows: Tensor
    """int64 [N]: with ``columns``, the positions whose output is needed."""
    columns: Tensor
    targets: Tensor
    """int64 [N]."""
    old_logprobs: Tensor
    """float32 [N]."""
    advantages: Tensor
    """float32 [N], scaled."""
    real_tokens: int
    """Positions that are not padding."""


def make_samples(
    groups: Sequence[Group],
    members: Sequence[Sequence[Member]],
    algorithm: AlgorithmConfig,
    *,
    max_context: int,
) -> list[Sample]:
    """The samples of one optimizer step; ``groups`` and ``members`` are all of the step's."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    flat = [member for siblings in members for member in siblings]
    num_tokens = [sum(trajectory.tokens.mask) for trajectory in trajectories]
    weights = trajectory_weights(flat, num_tokens, algorithm, max_context=max_context)
    return [
        _sample(trajectory.tokens, weight * member.advantage)
        for trajectory, member, weight in zip(trajectories, flat, weights, strict=True)
        if weight and member.has_signal and member.advantage is not None
    ]


def make_microbatches(
    samples: Sequence[Sample], *, tokens_per_microbatch: int, device: torch.device
) -> list[Microbatch]:
    """Cut samples, longest first, so that B · T stays within the budget.

    A sample longer than the budget makes a microbatch of its own.
    """
    ordered = sorted(samples, key=lambda sample: -len(sample.ids))
    batches = []
    start = 0
    while start < len(ordered):
        size = max(1, tokens_per_microbatch // len(ordered[start].ids))
        batches.append(_collate(ordered[start : start + size], device))
        start += size
    return batches


def _sample(tokens: TokenRecord, advantage: float) -> Sample:
    lengths = {len(tokens.ids), len(tokens.mask), len(tokens.logprobs)}
    assert len(lengths) == 1, f"a token record's columns differ in length: {sorted(lengths)}"
    assert not tokens.mask[0], "the first token of a trajectory cannot be a sampled one: nothing predicts it"
    sampled = [position for position, is_sampled in enumerate(tokens.mask) if is_sampled]
    return Sample(
        ids=tokens.ids[: sampled[-1]],
        positions=tuple(position - 1 for position in sampled),
        targets=tuple(tokens.ids[position] for position in sampled),
        old_logprobs=tuple(tokens.logprobs[position] for position in sampled),
        advantage=advantage,
    )


def _collate(samples: Sequence[Sample], device: torch.device) -> Microbatch:
    longest = max(len(sample.ids) for sample in samples)
    ids = torch.zeros((len(samples), longest), dtype=torch.int64)
    for row, sample in enumerate(samples):
        ids[row, : len(sample.ids)] = torch.tensor(sample.ids)
    counts = torch.tensor([len(sample.targets) for sample in samples])
    advantages = torch.tensor([sample.advantage for sample in samples], dtype=torch.float32)
    return Microbatch(
        ids=ids.to(device),
        rows=torch.repeat_interleave(torch.arange(len(samples)), counts).to(device),
        columns=torch.tensor([p for sample in samples for p in sample.positions], device=device),
        targets=torch.tensor([t for sample in samples for t in sample.targets], device=device),
        old_logprobs=torch.tensor(
            [x for sample in samples for x in sample.old_logprobs], dtype=torch.float32, device=device
        ),
        advantages=torch.repeat_interleave(advantages, counts).to(device),
        real_tokens=sum(len(sample.ids) for sample in samples),
    )
