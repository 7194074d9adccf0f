"""Recording of the inputs of the losses of some trajectories' sampled tokens during an update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from engine.events.token_trace import TraceRecord
from engine.trainer.batch import Microbatch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenTrace:
    """Inputs of the losses of a trajectory's sampled tokens, and their part in the update."""

    step: int
    """Index of the optimizer step, counted among those with a gradient."""
    weight: float
    """Weight w_i of ``engine.algorithms.weights``."""
    record: TraceRecord
    """Its columns, without texts."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Columns of one sample."""

    first: int
    step: int
    weight: float
    columns: dict[str, NDArray[np.float32]]


@dataclass(slots=True)
class TraceRecorder:
    """Collects the columns of chosen trajectories during an update.

    Args:
        wanted: ``Sample.trajectory_index`` of each.
    """

    wanted: frozenset[int]
    _parts: dict[tuple[int, int], _Part] = field(default_factory=dict)
    """Trajectory and first target → part."""

    def add(self, batch: Microbatch, logprobs: Tensor, entropies: Tensor, *, step: int) -> None:
        """Add the wanted samples of a microbatch; both tensors are [N]."""
        if self.wanted.isdisjoint(batch.trajectory_indices):
            return
        tensors = {
            "logprobs": logprobs,
            "entropies": entropies,
            "old_logprobs": batch.old_logprobs,
            "reference_logprobs": batch.reference_logprobs,
        }
        columns = {
            name: tensor.detach().float().cpu().numpy()
            for name, tensor in tensors.items()
            if tensor is not None
        }
        counts = batch.rows.bincount(minlength=len(batch.lengths)).cpu()
        ends = counts.cumsum(0).tolist()
        weights = batch.weights.cpu()
        for index, first, end, count in zip(
            batch.trajectory_indices, batch.first_targets, ends, counts.tolist(), strict=True
        ):
            if index in self.wanted:
                own = {name: column[end - count : end].copy() for name, column in columns.items()}
                self._parts[index, first] = _Part(first, step, float(weights[end - 1]), own)

    def gather(self) -> None:
        """Add the parts of all ranks; a collective. Ranks that share a row have equal parts."""
        gathered: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, self._parts)
        for parts in gathered:
            self._parts |= parts

    def traces(self) -> dict[int, TokenTrace]:
        """Return the trace of every wanted trajectory that was forwarded."""
        by_trajectory: dict[int, list[_Part]] = {}
        for (index, _), part in sorted(self._parts.items()):
            by_trajectory.setdefault(index, []).append(part)
        return {index: _joined(parts) for index, parts in by_trajectory.items()}


def _joined(parts: Sequence[_Part]) -> TokenTrace:
    columns: dict[str, Any] = {
        name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns
    }
    return TokenTrace(step=parts[0].step, weight=parts[0].weight, record=TraceRecord(**columns))
