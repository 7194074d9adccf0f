"""Conversion of graded groups into tensors: selection of trajectories and packing.

Only trajectories with a gradient become samples: one whose advantage is zero needs no forward pass, unless
the loss has a KL or entropy term (it still counts in the normaliser). Ids, masks and log-probabilities are
the sampler's own; nothing is tokenised here. Samples are packed without padding and attend only to
themselves; common prefixes are computed once. Packing never changes an update, only its speed.
To train on another property of a token: a column in ``Sample`` and ``Microbatch``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.algorithms import Member, needs_forward, trajectory_weights
from engine.config.learning.algorithm import AlgorithmConfig
from engine.models.attention import Segments
from engine.tokens import TokenRecord
from engine.trainer.packing import lay_out, pack, packed_length
from engine.trainer.ranks import ALONE, Ranks, shared_row
from engine.types import Group

IMITATION = AlgorithmConfig(
    ratio="none", kl="none", kl_coefficient=0.0, entropy_coefficient=0.0, importance_correction="none"
)
"""Objective whose loss is −w A log π of every sampled token."""
_SHARE = 32
"""Minimum length of a common prefix that is computed once, tokens."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """A trajectory to learn from, or the part of one between two forks of its conversation."""

    ids: NDArray[np.int32]
    """Model input, T tokens: all but the last sampled token, which is only predicted."""
    positions: NDArray[np.int64]
    """The N increasing input positions whose output predicts a sampled token."""
    targets: NDArray[np.int32]
    """The N sampled tokens."""
    sampler_logprobs: NDArray[np.float32]
    """Log-probabilities of the targets, recorded by the sampler."""
    advantage: float = 0.0
    """Advantage A_i of ``engine.algorithms``, unscaled."""
    weight: float = 0.0
    """Weight w_i of ``engine.algorithms.trajectory_weights``."""
    trajectory_index: int = 0
    """Index of the trajectory within the update, counted across groups."""
    first_target: int = 0
    """Number of sampled tokens of its trajectory before its own."""


Row: TypeAlias = tuple[Sample, ...]
"""Samples of one forward pass."""


@dataclass(slots=True, kw_only=True)
class Microbatch:
    """Samples of one forward pass: S samples, N sampled tokens; T tokens of the row are on this rank."""

    ids: Tensor
    """int64 [T]: this rank's part of the packed row."""
    segments: Segments
    columns: Tensor
    """int64 [n]: this rank's tokens whose output is needed; with a single rank, n is N."""
    slots: Tensor | None
    """int64 [n]: index of each of them among the N sampled tokens; None with a single rank."""
    targets: Tensor
    """int64 [N]."""
    sampler_logprobs: Tensor
    """float32 [N], as are ``advantages`` and ``weights``, which repeat the value of their sample."""
    advantages: Tensor
    weights: Tensor
    rows: Tensor
    """int64 [N]: index of the sample, 0 … S − 1."""
    trajectory_indices: tuple[int, ...]
    """``Sample.trajectory_index`` of each sample."""
    first_targets: tuple[int, ...]
    """``Sample.first_target`` of each sample."""
    lengths: tuple[int, ...]
    """Number of input tokens of each sample."""
    pieces: tuple[tuple[int, int], ...]
    """Number of tokens of each piece of the row, and of the keys it attends to; shared tokens are in one."""
    width: int
    """Positions forwarded by all ranks that share the row, padding included."""
    old_logprobs: Tensor | None = None
    """float32 [N]: log-probabilities under the weights before the update; None where the sampler's are
    used instead."""
    reference_logprobs: Tensor | None = None
    """float32 [N]: log-probabilities under the reference policy, where the objective needs them."""


def plain_sample(ids: Sequence[int]) -> Sample:
    """Return a token sequence [T] as a sample that scores every token after the first."""
    row = np.asarray(ids, np.int32)
    return Sample(
        ids=row[:-1],
        positions=np.arange(len(row) - 1),
        targets=row[1:],
        sampler_logprobs=np.zeros(len(row) - 1, np.float32),
    )


def make_samples(
    groups: Sequence[Group],
    members: Sequence[Sequence[Member]],
    algorithm: AlgorithmConfig,
    *,
    max_context: int,
    indices: Sequence[int] | None = None,
) -> list[Sample]:
    """Return the samples of one optimizer step; ``groups`` and ``members`` cover the whole step.

    The samples of one trajectory share its advantage and its weight: the normaliser counts it once.

    Args:
        groups: of the step.
        members: treatment of their trajectories.
        algorithm: the objective.
        max_context: the agent's limit in tokens.
        indices: ``Sample.trajectory_index`` of each trajectory; None counts within the step.
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    flat = [member for siblings in members for member in siblings]
    num_tokens = [trajectory.tokens.num_sampled for trajectory in trajectories]
    weights = trajectory_weights(flat, num_tokens, algorithm, max_context=max_context)
    indices = range(len(flat)) if indices is None else indices
    return [
        sample
        for trajectory, member, weight, index in zip(trajectories, flat, weights, indices, strict=True)
        if weight and needs_forward(member, algorithm)
        for sample in trajectory_samples(
            trajectory.tokens, advantage=member.advantage or 0.0, weight=weight, trajectory_index=index
        )
    ]


def trajectory_samples(
    tokens: TokenRecord, *, advantage: float = 0.0, weight: float = 0.0, trajectory_index: int = 0
) -> list[Sample]:
    """Return the samples of a trajectory that hold sampled tokens: one, and one more for every fork."""
    samples, first = [], 0
    for part in tokens.samples():
        if not part.num_sampled:
            continue
        sample = make_sample(
            part, advantage=advantage, weight=weight, trajectory_index=trajectory_index, first_target=first
        )
        samples.append(sample)
        first += part.num_sampled
    return samples


def make_sample(
    tokens: TokenRecord,
    *,
    advantage: float = 0.0,
    weight: float = 0.0,
    trajectory_index: int = 0,
    first_target: int = 0,
) -> Sample:
    """Return a record with at least one sampled token as a sample."""
    assert not tokens.mask[0], "the first token of a trajectory cannot be a sampled one: nothing predicts it"
    sampled = np.flatnonzero(tokens.mask)
    return Sample(
        ids=tokens.ids[: sampled[-1]],
        positions=sampled - 1,
        targets=tokens.ids[sampled],
        sampler_logprobs=tokens.logprobs[sampled],
        advantage=advantage,
        weight=weight,
        trajectory_index=trajectory_index,
        first_target=first_target,
    )


def imitation_samples(records: Sequence[TokenRecord]) -> list[Sample]:
    """Return the samples of one optimizer step that imitates the sampled tokens.

    With the objective ``IMITATION`` the loss is the mean cross-entropy over all sampled tokens of the step.
    """
    num_sampled = sum(record.num_sampled for record in records)
    return [
        sample
        for record in records
        for sample in trajectory_samples(record, advantage=1.0, weight=1.0 / max(1, num_sampled))
    ]


def share_rows(
    samples: Sequence[Sample], *, tokens_per_microbatch: int, data_parallel: int = 1
) -> list[list[Row]]:
    """Pack samples into rows of at most ``tokens_per_microbatch`` tokens and distribute these to data ranks.

    A sample longer than the budget gets a row of its own. All ranks get the same number of rows, as each
    takes part in all collectives: a row without samples is forwarded as padding without loss.

    Returns:
        The rows of each data rank.
    """
    sequences = [sample.ids for sample in samples]
    budget = min(tokens_per_microbatch, -(-packed_length(sequences, share=_SHARE) // data_parallel))
    rows: list[Row] = [tuple(samples[i] for i in row) for row in pack(sequences, budget, share=_SHARE)]
    rows += [() for _ in range(-len(rows) % data_parallel)]
    return [rows[rank::data_parallel] for rank in range(data_parallel)]


def make_microbatch(samples: Row, device: torch.device, ranks: Ranks = ALONE) -> Microbatch:
    """Return a row as tensors; under context parallelism, this rank's part of it."""
    layout = lay_out([sample.ids for sample in samples], share=_SHARE)
    counts = torch.tensor([len(sample.targets) for sample in samples], dtype=torch.int64)
    places = zip(layout.places, samples, strict=True)
    columns = _joined([row[sample.positions] for row, sample in places], torch.int64)
    row = shared_row(layout, ranks, device)
    ids = _joined([layout.ids, np.zeros(row.padding, np.int32)], torch.int64)
    slots = None
    if row.here is not None:
        ids = ids[row.here]
        local = torch.full((row.width,), -1)
        local[row.here] = torch.arange(len(row.here))
        slots = (local[columns] >= 0).nonzero().squeeze(1)
        columns = local[columns][slots]

    def repeated(values: list[float]) -> Tensor:
        return torch.repeat_interleave(torch.tensor(values, dtype=torch.float32), counts).to(device)

    return Microbatch(
        ids=ids.to(device),
        segments=row.segments,
        columns=columns.to(device),
        slots=None if slots is None else slots.to(device),
        targets=_joined([sample.targets for sample in samples], torch.int64).to(device),
        sampler_logprobs=_joined([sample.sampler_logprobs for sample in samples], torch.float32).to(device),
        advantages=repeated([sample.advantage for sample in samples]),
        weights=repeated([sample.weight for sample in samples]),
        rows=torch.repeat_interleave(torch.arange(len(samples)), counts).to(device),
        trajectory_indices=tuple(sample.trajectory_index for sample in samples),
        first_targets=tuple(sample.first_target for sample in samples),
        lengths=tuple(len(sample.ids) for sample in samples),
        pieces=tuple(zip(layout.lengths, layout.num_keys, strict=True)),
        width=row.width,
    )


def _joined(columns: Sequence[NDArray[Any]], dtype: torch.dtype) -> Tensor:
    """Concatenate arrays into one tensor; without arrays, return an empty one."""
    return torch.from_numpy(np.concatenate(columns)).to(dtype) if columns else torch.empty(0, dtype=dtype)
